"""Drive a conversation with a kernel: in the node's event loop, in another one, or in a thread that waits."""

from __future__ import annotations

import inspect
import select
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel

from atoll.node.needs import Answer, Asked, Insisted, Interrupted, Killed, Need, Needs, Ready
from atoll_guest.looking import look_for

# A Ctrl-C that comes just before a wait does not end it; Python notices it after this long. The conversation asks again.
_MOST_SECONDS = 0.5
# Gives the line that code asks for with `input()`: from a prompt, and whether it is secret.
Prompter = Callable[[str, bool], Any]
# Runs something in the node's event loop and waits for it.
AtHome = Callable[[Callable[[], Awaitable[None]]], object]


class Control:
    """What only the node can do with a kernel, in its own event loop."""

    def __init__(
        self,
        interrupt: Callable[[], Awaitable[None]],
        insist: Callable[[], Awaitable[None]],
        kill: Callable[[], Awaitable[None]],
    ) -> None:
        self.interrupt = interrupt
        self.insist = insist
        self.kill = kill


def drive_now(needs: Needs, *, may_look: bool) -> Need | None:
    """Let a conversation go on as far as it needs nobody to wait but for a moment; return what it needs then, None at its end."""
    need = next(needs, None)
    if isinstance(need, Asked):
        if may_look and need.soon is not None:
            # Without elbow room: whoever asked is a program of its own, and waits on the other processor.
            look_for(need.soon)
        need = next(needs, None)
    return need


async def drive(
    needs: Needs,
    control: Control,
    prompter: Prompter | None = None,
    need: Need | None = None,
) -> None:
    """See to what a conversation needs, in this task; first to `need`, if it has said that already."""
    answer = None
    while True:
        if need is None:
            try:
                need = needs.send(answer)
            except StopIteration:
                return
        answer, seen_to, need = None, need, None
        match seen_to:
            case Asked():
                await anyio.lowlevel.checkpoint()
                _look(seen_to)
            case Ready():
                await _wait(seen_to)
            case Interrupted():
                await control.interrupt()
            case Insisted():
                await control.insist()
            case Killed():
                await control.kill()
            case Answer() if prompter is not None:
                given = prompter(seen_to.prompt, seen_to.password)
                answer = await given if inspect.isawaitable(given) else given


def drive_here(
    needs: Needs,
    control: Control,
    at_home: AtHome,
    prompter: Prompter | None = None,
) -> None:
    """See to what a conversation needs, in this thread."""
    answer = None
    while True:
        try:
            need = needs.send(answer)
        except StopIteration:
            return
        answer = None
        match need:
            case Asked():
                _look(need)
            case Ready():
                _wait_here(need)
            case Interrupted():
                at_home(control.interrupt)
            case Insisted():
                at_home(control.insist)
            case Killed():
                at_home(control.kill)
            case Answer() if prompter is not None:
                answer = prompter(need.prompt, need.password)


async def _wait(need: Ready) -> None:
    wait = anyio.wait_writable if need.to_write else anyio.wait_readable
    # Somebody else may have heard what was waited for; the conversation looks for itself.
    with suppress(anyio.ClosedResourceError):
        if need.deadline is None:
            await wait(need.descriptor)
            return
        with anyio.move_on_after(max(0.0, need.deadline - time.monotonic())):
            await wait(need.descriptor)


def _look(need: Asked) -> None:
    """Look for something to read for a moment, if anything is likely to come."""
    if need.soon is not None:
        begun = time.perf_counter()
        looks = look_for(need.soon)
        need.room.note(looks, time.perf_counter() - begun)


def _wait_here(need: Ready) -> None:
    poll = select.poll()
    poll.register(need.descriptor, select.POLLOUT if need.to_write else select.POLLIN)
    seconds = _MOST_SECONDS if need.deadline is None else need.deadline - time.monotonic()
    # Rounded up, or the last millisecond would be spent asking again and again.
    poll.poll(int(min(max(0.0, seconds), _MOST_SECONDS) * 1000) + 1)
