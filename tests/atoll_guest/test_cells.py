"""Cells: their values, displays, questions and mistakes, in the kernel's own words."""

from __future__ import annotations

import base64

import pytest

from atoll_guest.frames import MAX_FRAME_BYTES
from atoll_guest.messages import mark
from tests.atoll_guest.guests import Guest


def test_a_cell_has_a_value_output_and_a_number(shared_guest: Guest) -> None:
    first = shared_guest.run("x = 20\nprint('hi')\nx + 1")
    assert (first.text, first.stdout, first.status) == ("21", b"hi\n", "ok")
    second = shared_guest.run("_ * 2, In[-1]")
    assert second.text == "(42, '_ * 2, In[-1]')"
    assert second.messages[-1]["count"] == first.messages[-1]["count"] + 1
    assert second.messages[0]["seq"] == first.messages[-1]["seq"] + 1


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("(1,\n 2)", "(1, 2)"),
        ("1; 2", "2"),
        ("x = 1", None),
        ("None", None),
        ("# nothing", None),
        ("", None),
        ("'ü\\ud800'", "'ü\\ud800'"),
        ("import os; os.environ['GIVEN']", "'yes'"),
        ("def f(a: int): ...\nf.__annotations__", "{'a': int}"),
        ("import asyncio\nawait asyncio.sleep(0, 7)", "7"),
        ("__name__", "'__main__'"),
        ("%precision 2\n", "'%.2f'"),
        ("2 / 3", "0.67"),
        ("%precision\n", "'%r'"),
    ],
)
def test_the_last_expression_is_the_value(shared_guest: Guest, code: str, text: str | None) -> None:
    assert shared_guest.run(code).text == text


def test_futures_last_for_later_cells(guest: Guest) -> None:
    guest.run("from __future__ import annotations")
    assert guest.run("def f(a: int): ...\nf.__annotations__").text == "{'a': 'int'}"


def test_tracebacks_show_the_cells_and_not_the_kernel(shared_guest: Guest) -> None:
    shared_guest.run("def f(a):\n    return 1 / a")
    failed = shared_guest.run("f(0)")
    assert (failed.error, failed.status) == ("ZeroDivisionError", "error")
    assert "return 1 / a" in failed.traceback
    for code in ("f(0)", "def f(:", "%run nowhere.py", "await f(0)", "input()", "exit()"):
        failed = shared_guest.run(code, answer={"text": "", "eof": True})
        assert failed.error
        assert "atoll_guest" not in failed.traceback
        assert "run_cell_async" not in failed.traceback


def test_an_endless_recursion_is_told_briefly(shared_guest: Guest) -> None:
    failed = shared_guest.run("def endless():\n    endless()\nendless()")
    assert failed.error == "RecursionError"
    assert "endless()" in failed.traceback
    assert len(failed.traceback) < 20_000


def test_displays_are_marked_where_they_belong(shared_guest: Guest) -> None:
    answer = shared_guest.run("print('a')\ndisplay(1)\nprint('b')\ndisplay(2)\nprint('c')\n3")
    shown = answer.of_type("display")
    assert [each["data"]["text/plain"] for each in shown] == ["1", "2"]
    first, second = (mark(each["id"], each["seq"]) for each in shown)
    assert answer.stdout == b"a\n" + first + b"b\n" + second + b"c\n"
    assert answer.text == "3"


def test_displays_can_be_updated_and_cleared(shared_guest: Guest) -> None:
    code = (
        "from IPython.display import clear_output, display\n"
        "handle = display(1, display_id='d', metadata={'a': 1})\nhandle.update(2)\nclear_output(wait=True)"
    )
    answer = shared_guest.run(code)
    first, second = answer.of_type("display")
    assert (first["transient"], first["metadata"]) == ({"display_id": "d"}, {"a": 1})
    assert (second["transient"], second["update"]) == ({"display_id": "d"}, True)
    (clear,) = answer.of_type("clear")
    assert clear["wait"] is True
    assert answer.stdout.endswith(mark(clear["id"], clear["seq"]))


def test_bytes_of_images_come_as_text(shared_guest: Guest) -> None:
    answer = shared_guest.run("class Png:\n    def _repr_png_(self): return b'\\x89PNG'\nPng()")
    data = answer.of_type("result")[0]["data"]
    assert base64.b64decode(data["image/png"]) == b"\x89PNG"


@pytest.mark.parametrize(
    "value",
    ["{'a': float('nan')}", "{'a': object()}", f"'x' * {MAX_FRAME_BYTES}", "{(1, 2): 3}"],
)
def test_what_cannot_be_sent_is_left_out_with_a_note(shared_guest: Guest, value: str) -> None:
    answer = shared_guest.run(f"display({{'application/json': {value}}}, raw=True)")
    assert "left out" in answer.of_type("display")[0]["data"]["text/plain"]
    assert answer.status == "ok"


def test_too_long_a_value_is_cut(shared_guest: Guest) -> None:
    text = shared_guest.run(f"'x' * {MAX_FRAME_BYTES}").text
    assert text.startswith("'xxx")
    assert f"{MAX_FRAME_BYTES + 2} characters" in text


def test_what_is_registered_for_the_end_of_cells_is_done(guest: Guest) -> None:
    # As matplotlib does, to show its figures.
    guest.run("get_ipython().events.register('post_execute', lambda: display('figure'))")
    assert guest.run("x = 1").of_type("display")[0]["data"]["text/plain"] == "'figure'"


def test_figures_are_shown_inline_once_matplotlib_is_loaded(shared_guest: Guest) -> None:
    assert "inline" in shared_guest.run("import os; os.environ['MPLBACKEND']").text
    assert shared_guest.run("import sys; 'matplotlib' in sys.modules").text == "False"


@pytest.mark.parametrize(
    ("code", "prompt", "password"),
    [
        ("input('name? ')", "name? ", False),
        ("import getpass; getpass.getpass()", "Password: ", True),
    ],
)
def test_questions_go_to_the_host(
    shared_guest: Guest, code: str, prompt: str, password: bool
) -> None:
    answer = shared_guest.run(code, answer={"text": "Ann"})
    (request,) = answer.of_type("input_request")
    assert (request["prompt"], request["password"], answer.text) == (prompt, password, "'Ann'")
    nobody = shared_guest.run(code, answer={"text": "", "eof": True})
    assert nobody.error == "EOFError"
    assert "nobody is there" in nobody.traceback


def test_only_the_cell_itself_asks_and_standard_input_is_at_its_end(shared_guest: Guest) -> None:
    code = (
        "import threading, sys\nfound = []\n"
        "def ask():\n    try:\n        input()\n    except EOFError as error:\n        found.append(str(error))\n"
        "thread = threading.Thread(target=ask); thread.start(); thread.join()\nfound, sys.stdin.read()"
    )
    text = shared_guest.run(code).text
    assert "thread" in text
    assert text.endswith("'')")


def test_late_and_foreign_answers_are_not_taken_for_input(guest: Guest) -> None:
    guest.send({"type": "input", "id": "foreign", "text": "no"})
    assert guest.run("input()", answer={"text": "yes"}).text == "'yes'"


def test_an_older_host_that_never_acknowledges_does_not_stop_a_cell(guest: Guest) -> None:
    code = "for _ in range(12): display({'text/plain': 'x' * (4 << 20)}, raw=True)"
    assert len(guest.run(code).of_type("display")) == 12


def test_a_host_that_acknowledges_is_waited_for(guest: Guest) -> None:
    guest.send({"type": "welcome", "version": 1, "acks": True})
    guest.send(
        {
            "type": "execute",
            "id": "a",
            "code": "for _ in range(12): display({'text/plain': 'x' * (4 << 20)}, raw=True)",
            "silent": False,
        }
    )
    kinds: list[str] = []
    while not kinds or kinds[-1] != "end":
        message = guest.receive()
        kinds.append(message["type"])
        guest.send({"type": "ack", "seq": message["seq"]})
    assert kinds == ["display"] * 12 + ["end"]


def test_what_was_not_acknowledged_is_sent_again(guest: Guest) -> None:
    before = guest.run("1 + 1").messages
    guest.send({"type": "resume", "seq": before[0]["seq"]})
    assert guest.receive() == before[1]
