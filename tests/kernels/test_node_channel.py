"""The Node kernel's end of its channel: messages are numbered, kept until they are noted, and never cut in two."""

from __future__ import annotations

import os
import secrets
import select
import time
from collections.abc import Iterator

import pytest

from atoll.model.guest import GUEST, GUEST_SOURCE
from atoll.model.language import find_kernel_language
from atoll_guest.messages import Message
from tests.atoll_guest.guests import Guest
from tests.kernels.node_presence import needs_node

pytestmark = [needs_node, pytest.mark.any_user]


@pytest.fixture
def guest() -> Iterator[Guest]:
    """A Node kernel in an ordinary process."""
    command = find_kernel_language("node").kernel
    guest = Guest([part.replace(GUEST, str(GUEST_SOURCE.parent)) for part in command])
    yield guest
    guest.close()


def ask(guest: Guest, code: str, **more: object) -> str:
    request = secrets.token_hex(8)
    guest.send({"type": "execute", "id": request, "code": code, "silent": False, **more})
    return request


def receive_until_end(guest: Guest) -> list[Message]:
    messages = [guest.receive()]
    while messages[-1]["type"] != "end":
        messages.append(guest.receive())
    return messages


def test_it_says_hello_and_takes_what_it_is_given(guest: Guest) -> None:
    assert guest.hello == {"type": "hello", "versions": [1, 1], "language": "node"}
    assert guest.run("process.env.GIVEN").text == "'yes'"


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
    rehearsal = find_kernel_language("node").rehearsal
    ask(guest, rehearsal, silent=True)
    assert receive_until_end(guest)[-1]["count"] == 1
    found = guest.run("[typeof _, typeof each]")
    assert (found.text, found.messages[-1]["count"]) == ("[ 'undefined', 'undefined' ]", 1)


def test_an_interrupt_cuts_no_message_in_two(guest: Guest) -> None:
    last = guest.run("0").messages[-1]["seq"]
    for attempt in range(12):
        # Large ones, so that the socket is full now and then.
        ask(guest, f"for (;;) display.html('x'.repeat({3 + 20_000 * (attempt % 3)}))", ack=last)
        instant = time.monotonic() + 0.02 * attempt
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
    assert guest.run("'whole'").text == "'whole'"


def discard_output(guest: Guest) -> None:
    """Read what was printed: the marks of displays would fill the pipe."""
    stdout = guest.process.stdout
    assert stdout is not None
    if select.select([stdout], [], [], 0)[0]:
        os.read(stdout.fileno(), 1 << 20)


def test_what_is_said_in_parts_is_put_together(guest: Guest) -> None:
    code = "/* " + "x" * 300_000 + " */ 'long'"
    assert guest.run(code).text == "'long'"
    assert guest.run("'y'.repeat(3)").text == "'yyy'"


def test_a_kernel_ends_with_its_channel(guest: Guest) -> None:
    guest.run("setInterval(() => {}, 10); await new Promise((done) => setTimeout(done, 30))")
    guest._channel.close()
    assert guest.process.wait(60) == 0
