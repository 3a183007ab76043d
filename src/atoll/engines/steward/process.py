"""A process under a steward."""

from __future__ import annotations

import asyncio
import os
import select
import signal as signals
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Protocol

import anyio
import anyio.lowlevel

from atoll.engines.inside.endings import check_signal, parse_status
from atoll.engines.inside.failed_starts import explain_failed_start
from atoll.engines.steward.change import Change
from atoll.engines.steward.frames import Frame, parse_credit
from atoll.engines.steward.inlet import Inlet
from atoll.engines.steward.link import Link
from atoll.engines.steward.outlet import CREDIT, Outlet
from atoll.engines.steward.pump import Pump, give_credit
from atoll.engines.steward.wire import Channel, Numbers, Order, ProcessEnding, Word
from atoll.errors import Conflict, InvalidRequest, Unavailable, Unsupported
from atoll.model.ids import ProcessId
from atoll.model.process import Command, EndReason, Output, ProcessEnd, Stream, TerminalSize

# How long output is still waited for after the end of a process while something it left behind keeps it open.
_LINGER_SECONDS = 0.2
_KILL_SECONDS = 5.0
_WAKE_SECONDS = 0.25
_SIGNAL_SECONDS = 2.0
_END_OF_INPUT = b"\x04"
# More than a pipe holds, and what was on its way.
_MOST_TO_COME = CREDIT + (64 << 20)
_STREAMS: Mapping[int, Stream] = {Channel.OUTPUT: "stdout", Channel.ERRORS: "stderr"}


class Owner(Protocol):
    """What a process needs of its sandbox."""

    def explain(self, end: ProcessEnd) -> ProcessEnd:
        """Tell deaths apart by what the limits have counted."""
        ...

    def awake(self) -> AbstractAsyncContextManager[None]:
        """Let a paused sandbox run for a moment; frozen processes do not even die."""
        ...

    def released(self, process: StewardProcess) -> None:
        """Forget the process."""
        ...

    @property
    def uses_marks(self) -> bool:
        """Whether what a process left behind can only be found by its mark."""
        ...

    def ended_error(self) -> Conflict:
        """Return what to raise once the sandbox is no more."""
        ...


class StewardProcess:
    """A program running in a sandbox that has a steward."""

    def __init__(
        self,
        command: Command,
        process_id: ProcessId,
        link: Link,
        owner: Owner,
        *,
        with_channel: bool = False,
    ) -> None:
        self._command = command
        self._id = process_id
        self._link = link
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._change = Change()
        self._guard = threading.Lock()
        self._begun = time.monotonic()
        self._pid = 0
        self._is_started = False
        self._failure: tuple[int, int] | None = None
        self._end: ProcessEnd | None = None
        self._to_come = {Channel.OUTPUT: 0, Channel.ERRORS: 0}
        self._is_gone = False  # with all that was killed for it
        self._was_lost = False  # before anybody knew how it ended
        self._killed = False
        self._signals_asked = self._signals_sent = 0
        self._stdin_ended = False
        self._is_read = False
        self._closed = False
        self._users = 0
        self._number = link.add(self)
        self._inlet = Inlet(link, self._number)
        self._activity = self._ending = -1
        self._activity_set: select.epoll | None = None
        self._channel: socket.socket | None = None
        self._pump: Pump | None = None
        self._outlets: dict[int, Outlet] = {}
        self._with_channel = with_channel

    def begin(self, kind: int, payload: bytes) -> None:
        """Have the steward start it."""
        self._link.tell(Order.START, self._number, kind, payload)
        channels = (Channel.OUTPUT,) if self._command.terminal else (Channel.OUTPUT, Channel.ERRORS)
        for channel in channels:
            self._outlets[channel] = Outlet(partial(self._give_credit, channel))
        if self._with_channel:
            self._open_channel()
        elif not (self._command.stdin or self._command.terminal):
            self._link.tell(Order.END, self._number)

    def _open_channel(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        self._pump = Pump(self._link, self._number, theirs)
        self._activity, self._ending = (
            os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2)
        )
        self._activity_set = select.epoll()
        self._activity_set.register(self._activity, select.EPOLLIN)
        self._activity_set.register(self._channel, select.EPOLLIN)

    def _give_credit(self, channel: Channel, count: int) -> None:
        give = partial(give_credit, self._link, self._number, channel, count)
        if self._with_channel:
            # Whoever runs a cell may be in another thread.
            self._loop.call_soon_threadsafe(give)
        else:
            give()

    # --- what the steward says ---------------------------------------------------------------------------

    def hear(self, frame: Frame) -> None:
        """Take a word about this process."""
        word = _HEARD.get(frame.word)
        if word is None:
            raise Unavailable("the sandbox says what makes no sense of a process; it was destroyed")
        word(self, frame)
        self._change.tell()

    def _hear_started(self, frame: Frame) -> None:
        self._is_started, self._pid = True, _numbers(frame).a

    def _hear_failed(self, frame: Frame) -> None:
        numbers = _numbers(frame)
        self._failure = (numbers.a, numbers.b)

    def _hear_data(self, frame: Frame) -> None:
        if frame.channel == Channel.TALK and self._pump is not None:
            fits = self._pump.put(frame.data)
        elif frame.channel in self._outlets:
            fits = self._outlets[frame.channel].put(frame.data, time.monotonic() - self._begun)
            self._note_activity()
        else:
            fits = False
        if not fits:
            raise Unavailable("the sandbox sends more than it was asked for; it was destroyed")

    def _hear_end(self, frame: Frame) -> None:
        if frame.channel == Channel.TALK and self._pump is not None:
            self._pump.end_output()
        elif frame.channel == Channel.INPUT:
            self._inlet.refuse()
            if self._pump is not None:
                self._pump.refuse_input()
        elif frame.channel in self._outlets:
            self._outlets[frame.channel].has_ended = True
            self._note_activity()

    def _hear_credit(self, frame: Frame) -> None:
        count = parse_credit(frame)
        if self._pump is not None:
            self._pump.add_credit(count)
        else:
            self._inlet.add_credit(count)

    def _hear_ended(self, frame: Frame) -> None:
        try:
            ending = ProcessEnding.from_buffer_copy(frame.data)
        except ValueError as error:
            raise Unavailable(
                "the sandbox tells an end that makes no sense; it was destroyed"
            ) from error
        self._to_come = {
            Channel.OUTPUT: ending.output_bytes[0],
            Channel.ERRORS: ending.output_bytes[1],
        }
        if any(
            self._to_come[Channel(channel)] > outlet.received + _MOST_TO_COME
            for channel, outlet in self._outlets.items()
        ):
            raise Unavailable("the sandbox promises more than a pipe holds; it was destroyed")
        self._set_end(self._owner.explain(parse_status(ending.status, killed=self._killed)))

    def _hear_signalled(self, _frame: Frame) -> None:
        self._signals_sent += 1

    def _hear_gone(self, _frame: Frame) -> None:
        self._is_gone = True
        if self._end is None and self._failure is None:
            # Without a word: somebody inside killed the supervisor.
            lost = EndReason.KILLED if self._killed else EndReason.LOST
            self._set_end(self._owner.explain(ProcessEnd(None, signals.SIGKILL, lost)))

    def lose(self) -> None:
        """Take note that the sandbox has ended."""
        self._is_gone = self._was_lost = True
        self._inlet.refuse()
        for outlet in self._outlets.values():
            outlet.has_ended = True
        if self._pump is not None:
            self._pump.close()
        if self._end is None:
            reason = EndReason.KILLED if self._killed else EndReason.LOST
            self._set_end(self._owner.explain(ProcessEnd(None, signals.SIGKILL, reason)))
        self._change.tell()

    def _set_end(self, end: ProcessEnd) -> None:
        if self._end is None:
            self._end = end
            self._note_activity()
            if self._ending >= 0:
                os.eventfd_write(self._ending, 1)

    def _note_activity(self) -> None:
        if self._activity >= 0:
            os.eventfd_write(self._activity, 1)

    # --- facts -------------------------------------------------------------------------------------------

    @property
    def id(self) -> ProcessId:
        """The process's id."""
        return self._id

    @property
    def pid(self) -> int:
        """Its number inside the sandbox."""
        return self._pid

    @property
    def command(self) -> Command:
        """What was asked for."""
        return self._command

    @property
    def end(self) -> ProcessEnd | None:
        """How it ended, if it has."""
        return self._end

    async def started(self) -> None:
        """Wait until the program runs or could not be started."""
        await self._change.until(
            lambda: self._is_started or self._failure is not None or self._end is not None
        )
        if self._failure is not None:
            end, message = explain_failed_start(self._command, *self._failure)
            channel = Channel.OUTPUT if message.stream == "stdout" else Channel.ERRORS
            self._outlets[channel].put(message.data, 0.0)
            for outlet in self._outlets.values():
                outlet.has_ended = True
            self._is_gone = True
            self._inlet.refuse()
            self._set_end(end)
        elif not self._is_started and self._was_lost:
            raise self._owner.ended_error()

    # --- output ------------------------------------------------------------------------------------------

    async def output(self) -> AsyncGenerator[Output, None]:
        """Yield both streams as they come."""
        if self._is_read:
            raise Conflict("the output of this process is being read or was read already")
        self._is_read = True
        deadline: float | None = None
        while True:
            for output in self.take_output():
                yield output
            if self._closed or all(
                outlet.has_ended and outlet.is_empty for outlet in self._outlets.values()
            ):
                return
            if deadline is None and self._has_all():
                deadline = time.monotonic() + _LINGER_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                return
            await self._wait_for_more(deadline)

    async def _wait_for_more(self, deadline: float | None) -> None:
        if any(not outlet.is_empty for outlet in self._outlets.values()):
            await anyio.lowlevel.checkpoint()
            return
        with anyio.move_on_after(
            None if deadline is None else max(0.0, deadline - time.monotonic())
        ):
            await self._change.wait()

    def _has_all(self) -> bool:
        """Whether all came that was printed before the end; only what others print can still come."""
        return self._end is not None and all(
            outlet.has_ended or outlet.received >= self._to_come[Channel(channel)]
            for channel, outlet in self._outlets.items()
        )

    def take_output(self) -> Sequence[Output]:
        """Return what was printed and not read yet."""
        if self._activity >= 0:
            with suppress(BlockingIOError):
                os.eventfd_read(self._activity)
            if self._end is not None:
                os.eventfd_write(self._activity, 1)
        taken: list[Output] = []
        for channel, outlet in self._outlets.items():
            while (piece := outlet.take()) is not None:
                taken.append(Output(_STREAMS[channel], *piece))
        return sorted(taken, key=lambda output: output.t)

    def descriptors(self) -> Mapping[Stream, int]:
        """There are none: what is printed comes in frames."""
        raise Unsupported("outputs of this engine are read by output(), not as descriptors")

    # --- input -------------------------------------------------------------------------------------------

    def stdin_descriptor(self) -> int:
        """There is none."""
        self._check_input()
        raise Unsupported(
            "standard input of this engine is written by write(), not as a descriptor"
        )

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input, or to the terminal."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidRequest(f"standard input takes bytes, not {type(data).__name__}")
        self._check_input()
        if not await self._inlet.send(data):
            if self._was_lost:
                raise self._owner.ended_error()
            raise Conflict("the process does not read its standard input any more")

    def _check_input(self) -> None:
        if self._command.terminal is None and not self._command.stdin:
            raise InvalidRequest(
                "this command was started without standard input; start it with stdin=True"
            )
        if not self._inlet.is_open:
            raise Conflict("standard input of this process is closed")

    async def close_stdin(self) -> None:
        """Let standard input end; on a terminal, by the character that stands for that."""
        if self._command.terminal is None:
            self._inlet.end()
        elif not self._stdin_ended and self._inlet.is_open:
            self._stdin_ended = True
            await self._inlet.send(_END_OF_INPUT)

    async def resize(self, size: TerminalSize) -> None:
        """Change the terminal's size."""
        if self._command.terminal is None:
            raise InvalidRequest(
                "this process has no terminal to resize; start it with terminal=TerminalSize()"
            )
        if not isinstance(size, TerminalSize):
            raise InvalidRequest(f"size is {type(size).__name__}; it has to be a TerminalSize")
        numbers = Numbers(a=size.rows, b=size.columns)
        self._link.tell(Order.RESIZE, self._number, data=bytes(numbers))

    # --- its end -----------------------------------------------------------------------------------------

    async def wait(self) -> ProcessEnd:
        """Return how the process ended."""
        await self._change.until(lambda: self._end is not None)
        assert self._end is not None
        return self._end

    async def signal(self, number: int) -> None:
        """Send a signal to the process and its group."""
        check_signal(number)
        if self._end is None and not self._closed:
            self._signals_asked += 1
            asked = self._signals_asked
            self._link.tell(Order.SIGNAL, self._number, data=number.to_bytes(4, "little"))
            # Whatever is done next must not be hit by it; a supervisor that was stopped is not waited for.
            with anyio.move_on_after(_SIGNAL_SECONDS):
                await self._change.until(
                    lambda: self._signals_sent >= asked or self._end is not None
                )

    async def kill(self) -> None:
        """End everything that the process started."""
        if self._closed or self._was_lost or (self._is_gone and not self._owner.uses_marks):
            return
        # Where nobody watches over what it left behind, that is looked for now.
        self._killed, self._is_gone = True, False
        async with self._owner.awake():
            self._link.tell(Order.KILL, self._number)
            # Somebody inside may have stopped its supervisor; or outruns it again and again.
            for seconds, order in ((_WAKE_SECONDS, Order.WAKE), (_KILL_SECONDS, Order.KILL_ALL)):
                with anyio.move_on_after(seconds):
                    await self._change.until(lambda: self._is_gone)
                    return
                self._link.tell(order)
            with anyio.move_on_after(_KILL_SECONDS):
                await self._change.until(lambda: self._is_gone)
                return
            raise Unavailable("what the process started could not be ended; destroy the sandbox")

    async def close(self) -> None:
        """Kill it if it still runs and release what the host holds."""
        if self._closed:
            return
        if self._end is None:
            with anyio.CancelScope(shield=True):
                await self.kill()
        self.release()

    def release(self) -> None:
        """Let go of it, and wake whoever waits for something of it."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            in_use = bool(self._users)
        self._set_end(ProcessEnd(None, signals.SIGKILL, EndReason.KILLED))
        self._link.forget(self._number)
        self._inlet.refuse()
        if self._pump is not None:
            self._pump.close()
        self._change.tell()
        self._owner.released(self)
        if not in_use:
            self._let_go()

    # --- a kernel's own ----------------------------------------------------------------------------------

    @property
    def channel(self) -> socket.socket:
        """A kernel's channel; other processes have none."""
        assert self._channel is not None
        return self._channel

    @property
    def activity(self) -> int:
        """A descriptor that is readable when a kernel or an output has something to read, or it has ended."""
        assert self._activity_set is not None
        return self._activity_set.fileno()

    @property
    def ending(self) -> int:
        """A descriptor that is readable when the process has ended."""
        return self._ending

    def explain(self, end: ProcessEnd) -> ProcessEnd:
        """Return the end of something that the kernel ran, with the reason if a limit was that."""
        return self._owner.explain(end)

    @contextmanager
    def _hold(self) -> Iterator[None]:
        with self._guard:
            if self._closed:
                raise Conflict("this kernel has ended; open another")
            self._users += 1
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._guard:
            self._users -= 1
            is_last = self._closed and not self._users
        if is_last:
            self._let_go()

    def hold(self) -> AbstractContextManager[None]:
        """Keep the descriptors open while another thread uses them."""
        return self._hold()

    def _let_go(self) -> None:
        channel, watched = self._channel, self._activity_set
        if channel is None or watched is None:
            return
        with suppress(anyio.NoEventLoopError):  # then nobody waits here
            for descriptor in (channel, self._ending, watched):
                anyio.notify_closing(descriptor)
        channel.close()
        watched.close()
        for fd in (self._activity, self._ending):
            os.close(fd)
        self._activity = self._ending = -1


def _numbers(frame: Frame) -> Numbers:
    try:
        return Numbers.from_buffer_copy(frame.data)
    except ValueError as error:
        raise Unavailable("the sandbox says what makes no sense; it was destroyed") from error


_HEARD: Mapping[int, Callable[[StewardProcess, Frame], None]] = {
    Word.STARTED: StewardProcess._hear_started,
    Word.FAILED: StewardProcess._hear_failed,
    Word.DATA: StewardProcess._hear_data,
    Word.END: StewardProcess._hear_end,
    Word.CREDIT: StewardProcess._hear_credit,
    Word.ENDED: StewardProcess._hear_ended,
    Word.SIGNALLED: StewardProcess._hear_signalled,
    Word.GONE: StewardProcess._hear_gone,
}
