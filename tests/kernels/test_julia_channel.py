"""The Julia kernel's end of its channel: messages in and out, questions, and interrupts at every moment."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest

from atoll.model.guest import GUEST, GUEST_SOURCE
from atoll.model.language import find_kernel_language
from atoll_guest.messages import Message
from tests.atoll_guest.guests import Guest
from tests.kernels.julia_presence import needs_julia
from tests.kernels.test_node_channel import ask, discard_output, receive_until_end

pytestmark = [needs_julia, pytest.mark.any_user, pytest.mark.timeout(180)]

JULIA = find_kernel_language("julia")


@pytest.fixture(scope="module")
def shared() -> Iterator[Guest]:
    """A Julia kernel in an ordinary process, for questions that change nothing."""
    yield from _guest()


@pytest.fixture
def guest() -> Iterator[Guest]:
    """Another one, for a single test."""
    yield from _guest()


def _guest() -> Iterator[Guest]:
    guest = Guest([part.replace(GUEST, str(GUEST_SOURCE.parent)) for part in JULIA.kernel])
    yield guest
    guest.close()


def question(guest: Guest, kind: str, **fields: Any) -> Message:
    """Ask something besides to run a cell; return the content of the reply."""
    guest.send({"type": kind, "id": secrets.token_hex(8), **fields})
    reply = guest.receive()
    assert reply["type"] == "reply"
    content: Message = reply["content"]
    return content


def test_it_says_hello_and_takes_what_it_is_given(guest: Guest) -> None:
    assert guest.hello == {"type": "hello", "versions": [1, 1], "language": "julia"}
    assert guest.run('ENV["GIVEN"]').text == '"yes"'


def test_what_was_not_noted_is_said_again(guest: Guest) -> None:
    ask(guest, "display(1); 2")
    messages = receive_until_end(guest)
    assert [each["type"] for each in messages] == ["display", "result", "end"]
    assert [each["seq"] for each in messages] == [1, 2, 3]
    guest.send({"type": "resume", "seq": 0})
    assert receive_until_end(guest) == messages
    guest.send({"type": "ack", "seq": 1})
    guest.send({"type": "resume", "seq": 1})
    assert receive_until_end(guest) == messages[1:]
    ask(guest, "3", ack=3)
    guest.receive()
    guest.receive()
    guest.send({"type": "resume", "seq": 3})
    assert [each["seq"] for each in receive_until_end(guest)] == [4, 5]


def test_a_silent_cell_is_not_counted_and_leaves_nothing(guest: Guest) -> None:
    ask(guest, JULIA.rehearsal, silent=True)
    assert receive_until_end(guest)[-1]["count"] == 1
    found = guest.run("(@isdefined(ans), @isdefined(each))")
    assert (found.text, found.messages[-1]["count"]) == ("(false, false)", 1)


def test_what_is_said_in_parts_is_put_together(shared: Guest) -> None:
    code = "#= " + "x" * 300_000 + ' é世𝄞\\"\t =# "long"'
    assert shared.run(code).text == '"long"'
    assert shared.run('"é世𝄞 \\u41"').text == '"é世𝄞 A"'


def test_what_nobody_takes_note_of_is_bounded(guest: Guest) -> None:
    ask(guest, 'for i in 1:20 display("text/html", "x"^4_000_000) end')
    messages = [guest.receive()]
    while messages[-1]["type"] != "end":
        messages.append(guest.receive())
        discard_output(guest)
    assert len(messages) == 21
    guest.send({"type": "resume", "seq": 0})
    again = receive_until_end(guest)
    assert again == messages[-len(again) :]
    assert 5 < len(again) < 12


def test_it_waits_for_a_host_that_takes_note(guest: Guest) -> None:
    guest.send({"type": "welcome", "version": 1, "acks": True})
    ask(guest, 'for i in 1:10 display("text/html", "x"^4_000_000) end')
    messages = [guest.receive() for _ in range(9)]
    time.sleep(0.3)
    guest.send({"type": "ack", "seq": 9})
    while messages[-1]["type"] != "end":
        messages.append(guest.receive())
    assert [each["seq"] for each in messages] == list(range(1, 12))


@pytest.mark.parametrize("gap", [0.0, 0.01])
def test_an_interrupt_cuts_no_message_in_two(guest: Guest, gap: float) -> None:
    guest.run("error(0)")  # has what is needed for that compiled
    last = guest.run("0").messages[-1]["seq"]
    for attempt in range(12):
        # Large ones, so that the socket is full now and then.
        size = 3 + 20_000 * (attempt % 3)
        ask(guest, f'while true; display("text/html", "x"^{size}); end', ack=last)
        instant = time.monotonic() + 0.1 + gap * attempt
        is_interrupted = False
        messages = [guest.receive()]
        while messages[-1]["type"] != "end":
            if time.monotonic() > instant and not is_interrupted:
                guest.interrupt()
                is_interrupted = True
            messages.append(guest.receive())
            discard_output(guest)
        assert messages[-1]["status"] == "interrupted"
        assert [each["seq"] for each in messages] == list(range(last + 1, last + len(messages) + 1))
        last = messages[-1]["seq"]
    assert guest.run('"whole"').text == '"whole"'


def test_interrupts_between_cells_are_for_nobody(guest: Guest) -> None:
    guest.run("ticks = 0; @async while true; sleep(0.01); global ticks += 1; end; nothing")
    for _ in range(20):
        guest.interrupt()
        time.sleep(0.01)
    first = guest.run("ticks")
    time.sleep(0.2)
    # What goes on between cells has not heard of it either.
    assert int(guest.run("ticks").text) > int(first.text)


def test_a_kernel_ends_with_its_channel(guest: Guest) -> None:
    guest.run("@async while true; sleep(0.01); end; atexit(() -> sleep(1000)); nothing")
    guest._channel.close()
    assert guest.process.wait(60) == 0


def test_a_directory_that_is_not_there_ends_it_with_a_word(guest: Guest) -> None:
    guest.send({"type": "welcome", "version": 1, "cwd": "/nowhere"})
    assert guest.process.wait(60) == 70
    assert guest.process.stderr is not None
    assert b"/nowhere" in guest.process.stderr.read()


# --- questions ------------------------------------------------------------------------------------------------

# Code, what it may go on with from its end, and where that begins.
COMPLETIONS = {
    "a variable": ("my_va", "my_variable", 0),
    "a field": ("my_variable.al", "alpha", 12),
    "on the second line": ("x = 1\nmy_va", "my_variable", 6),
    "after other letters": ('"é世𝄞"; my_v', "my_variable", 7),
    "a function": ("printst", "printstyled", 0),
    "of a module": ("Base.printst", "printstyled", 5),
    "a macro": ("@asser", "@assert", 0),
    "a package": ("using Statis", "Statistics", 6),
    "a letter by its name": ("\\alph", "\\alpha", 0),
}


@pytest.mark.parametrize("case", COMPLETIONS)
def test_words_are_completed(shared: Guest, case: str) -> None:
    shared.run("my_variable = (alpha = 1,)")
    code, match, start = COMPLETIONS[case]
    answer = question(shared, "complete", code=code, cursor=len(code))
    assert match in answer["matches"]
    assert (answer["start"], answer["end"]) == (start, len(code))


def test_nothing_is_completed_where_nothing_begins_so(shared: Guest) -> None:
    code = "no_such_name_at_all"
    answer = question(shared, "complete", code=code, cursor=len(code))
    assert answer == {"matches": [], "start": len(code), "end": len(code)}


# Code, where in it, and what the answer holds; None if nothing is known.
INSPECTIONS = {
    "a function with help": ("sqrt(2)", 2, "Return \\sqrt{x}"),
    "of a module": ("Base.sqrt", 7, "Return \\sqrt{x}"),
    "a macro": ("@time 1", 3, "execute"),
    "a function of one's own": ("explained(1)", 4, "What it does."),
    "a value": ("some_value", 3, "some_value"),
    "behind other letters": ('"𝄞"; sqrt', 7, "Return \\sqrt{x}"),
    "an unknown name": ("nowhere_at_all", 3, None),
    "a field of a value": ("some_value.x", 12, None),
    "no name": ("1 + 1", 3, None),
    "nothing": ("", 0, None),
}


@pytest.mark.parametrize("case", INSPECTIONS)
def test_names_are_told_about(shared: Guest, case: str) -> None:
    shared.run('"What it does."\nexplained(x) = x')
    shared.run("some_value = 5")
    code, cursor, part = INSPECTIONS[case]
    answer = question(shared, "inspect", code=code, cursor=cursor)
    assert answer["found"] is (part is not None)
    assert part is None or part in answer["data"]["text/plain"]


def test_a_question_changes_nothing(guest: Guest) -> None:
    before = guest.run("names(Main; all = true)").text
    assert question(guest, "ping") == {}
    question(guest, "complete", code="prin", cursor=4)
    question(guest, "inspect", code="sqrt", cursor=2)
    found = guest.run("filter(each -> each != :ans, names(Main; all = true))")
    assert found.messages[-1]["count"] == 2
    assert "Atoll" not in str(before) + str(found.text)
