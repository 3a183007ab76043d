"""Ctrl-C ends the cell that runs, whatever it does, and nothing else."""

from __future__ import annotations

import signal

import pytest

from tests.atoll_guest.guests import Guest
from tests.campaigns import Campaign

# Imports come first: Python itself loses an interrupt that comes while the lock of a module goes away.
READY = "import asyncio, os, subprocess, time\nprint('ready')\n"
LONG = {
    "sleep": "time.sleep(100)",
    "loop": "while True: pass",
    "read": "os.read(os.pipe()[0], 1)",
    "program": "subprocess.run(['sleep', '100'])",
    "magic": "%time time.sleep(100)",
    "await": "await asyncio.sleep(100)",
    "event loop": "asyncio.run(asyncio.sleep(100))",
    "value's form": "class Slow:\n    def __repr__(self):\n        while True: pass\nSlow()",
}


@pytest.mark.parametrize("code", LONG.values(), ids=LONG.keys())
def test_an_interrupt_ends_the_cell_and_keeps_the_kernel(guest: Guest, code: str) -> None:
    answer = guest.run(READY + code, on_output=guest.interrupt)
    assert answer.status == "interrupted"
    assert guest.run("1 + 1").text == "2"


def test_an_interrupt_ends_the_wait_for_input(guest: Guest) -> None:
    guest.send({"type": "execute", "id": "a", "code": "input()", "silent": False})
    assert guest.receive()["type"] == "input_request"
    guest.interrupt()
    assert [guest.receive()["type"], guest.receive()["status"]] == ["error", "interrupted"]
    guest.send({"type": "input", "id": "a", "text": "late"})
    assert guest.run("1 + 1").text == "2"


def test_an_interrupt_ends_the_making_of_an_errors_text(guest: Guest) -> None:
    code = "class Slow(Exception):\n    def __str__(self):\n        print('ready')\n        while True: pass\nraise Slow"
    answer = guest.run(code, on_output=guest.interrupt)
    assert (answer.error, answer.status) == ("Slow", "error")
    assert guest.run("1 + 1").text == "2"


def test_an_interrupt_ends_the_flush_of_what_a_cell_put_in_place_of_stdout(guest: Guest) -> None:
    code = """
import sys
class Slow:
    def flush(self):
        sys.stdout = sys.__stdout__
        print("ready")
        while True: pass
sys.stdout = Slow()
"""
    assert guest.run(code, on_output=guest.interrupt).status == "interrupted"
    assert guest.run("1 + 1").text == "2"


def test_an_interrupted_await_does_not_go_on_with_the_next_cell(guest: Guest) -> None:
    code = """
import asyncio
go = False
async def late():
    asyncio.get_running_loop().call_later(0.01, print, "ready")
    while not go: await asyncio.sleep(0.01)
    print("late")
await late()
"""
    assert guest.run(code, on_output=guest.interrupt).status == "interrupted"
    assert guest.run("go = True\nawait asyncio.sleep(0.2)").stdout == b""


def test_an_interrupt_between_cells_is_ignored(guest: Guest) -> None:
    for _ in range(20):
        guest.interrupt()
        assert guest.run("sum(range(1000))").status in ("ok", "interrupted")
    guest.send({"type": "ping", "id": "a"})
    guest.receive()
    guest.interrupt()
    guest.send({"type": "ping", "id": "b"})
    assert guest.receive()["id"] == "b"
    assert guest.run("1 + 1").text == "2"


def test_what_is_displayed_between_cells_does_not_let_interrupts_in(guest: Guest) -> None:
    guest.run("import signal; signal.signal(signal.SIGALRM, lambda *_: display('between'))")
    guest.process.send_signal(signal.SIGALRM)
    assert guest.wait_output()
    guest.interrupt()
    guest.send({"type": "ping", "id": "a"})
    assert guest.receive()["type"] == "reply"
    assert guest.run("1 + 1").text == "2"


@pytest.mark.parametrize("error", ["TimeoutError", "ValueError"])
def test_an_alarm_that_a_cell_left_behind_does_not_end_the_kernel(guest: Guest, error: str) -> None:
    code = f"def late(*_):\n    print('late')\n    raise {error}\nimport signal; _ = signal.signal(signal.SIGALRM, late)"
    guest.run(code)
    guest.process.send_signal(signal.SIGALRM)
    assert guest.wait_output()
    assert guest.run("1 + 1").text == "2"


def test_an_alarm_soon_after_many_requests_does_not_end_the_kernel(guest: Guest) -> None:
    guest.run("def late(*_):\n    print('late')\n    raise ValueError")
    guest.run("import signal; _ = signal.signal(signal.SIGALRM, late)")
    # Longer than what is read at once, so that each is waited for, but not for long.
    request = {"type": "execute", "id": "many", "code": "pass" + " " * 5000, "silent": False}
    for _ in range(10):
        for _ in range(6):
            guest.send(request)
        for _ in range(6):
            assert guest.receive()["type"] == "end"
        guest.process.send_signal(signal.SIGALRM)
        assert guest.wait_output()
        assert guest.run("1 + 1").text == "2"


def test_a_function_of_the_cells_own_stays_but_is_in_force_only_in_cells(guest: Guest) -> None:
    guest.run(
        "import signal, time\nseen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))"
    )
    guest.interrupt()
    guest.send({"type": "ping", "id": "a"})
    guest.receive()
    assert guest.run("seen").text == "[]"
    code = READY + "while not seen: time.sleep(0.01)\nseen"
    assert guest.run(code, on_output=guest.interrupt).text == "[1]"


def test_pythons_own_function_may_be_put_back(guest: Guest) -> None:
    guest.run("import signal; signal.signal(signal.SIGINT, signal.default_int_handler)")
    for _ in range(3):
        assert guest.run(READY + LONG["sleep"], on_output=guest.interrupt).status == "interrupted"
        guest.interrupt()
    guest.run("")
    assert guest.run("1 + 1").text == "2"


def test_interrupts_never_cut_a_message(guest: Guest, campaign: Campaign) -> None:
    for _ in range(campaign.count(400)):
        code = READY + f"for n in range(10**9): display('x' * {campaign.random.randrange(100_000)})"
        answer = guest.run(code, on_output=guest.interrupt)
        assert answer.status == "interrupted"
    assert guest.run("1 + 1").text == "2"
