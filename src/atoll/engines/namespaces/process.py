"""A process of a namespaces sandbox: pipes or a terminal, and the control socket of its supervisor."""

from __future__ import annotations

import fcntl
import os
import select
import signal as signals
import socket
import stat
import struct
import termios
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import Protocol

import anyio
import anyio.lowlevel

from atoll.engines.inside.endings import check_signal, parse_status
from atoll.engines.inside.failed_starts import explain_failed_start
from atoll.engines.inside.wire import (
    SupervisorEvent,
    SupervisorOp,
    SupervisorReport,
    SupervisorRequest,
)
from atoll.engines.namespaces import channel
from atoll.engines.namespaces.lasting_keeper import Kept
from atoll.engines.namespaces.outputs import Outputs
from atoll.engines.namespaces.plumbing import Plumbing, wake_waiting
from atoll.engines.namespaces.shelf import Shelf, end_note, parse_end
from atoll.errors import Conflict, InvalidRequest
from atoll.model.ids import ProcessId
from atoll.model.process import Command, EndReason, Output, ProcessEnd, Stream, TerminalSize

# How long output is still read after the end of a process while something it left behind keeps it open.
_LINGER_SECONDS = 0.2
_KILL_SECONDS = 5.0
_WAKE_SECONDS = 0.25
_SIGNAL_SECONDS = 2.0
_MOMENT = 0.0005
_FAILURE = struct.Struct("2i")
_END_OF_INPUT = b"\x04"


class Owner(Protocol):
    """What a process needs of its sandbox."""

    def explain(self, end: ProcessEnd) -> ProcessEnd:
        """Tell deaths apart by what the limits have counted."""
        ...

    def kill_everything(self) -> None:
        """Kill every process of the sandbox."""
        ...

    def wake_supervisors(self) -> None:
        """Let supervisors that were stopped go on."""
        ...

    def awake(self) -> AbstractAsyncContextManager[None]:
        """Let a paused sandbox run for a moment; frozen processes do not even die."""
        ...

    def released(self, process: NamespaceProcess, leftover: list[int]) -> None:
        """Forget the process, also what is kept of it, and read its open outputs to nowhere."""
        ...


class NamespaceProcess:
    """A program running in a namespaces sandbox."""

    def __init__(
        self,
        command: Command,
        plumbing: Plumbing,
        owner: Owner,
        process_id: ProcessId,
        shelf: Shelf,
    ) -> None:
        self._command = command
        self._id = process_id
        self._shelf = shelf
        self._plumbing = plumbing
        self._outputs = Outputs(plumbing.outputs)
        self._owner = owner
        self._pid = 0
        self._end: ProcessEnd | None = None
        self._killed = False
        self._signals_asked = 0
        self._signals_sent = 0
        self._supervisor_gone = False
        self._stdin_ended = False
        self._closed = False
        self._read = False
        self._reader: int | None = None
        self._waiting = anyio.Lock()
        self._activity: select.epoll | None = None
        self._ending: select.epoll | None = None
        self._guard = threading.RLock()
        self._reports = select.poll()
        self._reports.register(plumbing.control, select.POLLIN)
        self._users = 0

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
    def channel(self) -> socket.socket:
        """A kernel's channel; other processes have none."""
        assert self._plumbing.channel is not None
        return self._plumbing.channel

    def take_output(self) -> Sequence[Output]:
        """Return what was printed and not read yet."""
        return self._outputs.take()

    @property
    def activity(self) -> int:
        """A descriptor that is readable when a kernel or an output has something to read, or it has ended."""
        if self._activity is None:
            self._activity = select.epoll()
            for descriptor in (
                self._plumbing.control,
                self._plumbing.channel,
                *self._plumbing.outputs,
            ):
                if descriptor is not None:
                    self._activity.register(descriptor, select.EPOLLIN)
        return self._activity.fileno()

    @property
    def ending(self) -> int:
        """A descriptor that is readable when the process has ended."""
        # Its own, as only one task can wait for a descriptor: others may wait for the supervisor meanwhile.
        if self._ending is None:
            self._ending = select.epoll()
            self._ending.register(self._plumbing.control, select.EPOLLIN)
        return self._ending.fileno()

    def explain(self, end: ProcessEnd) -> ProcessEnd:
        """Return the end of something that the kernel ran, with the reason if a limit was that."""
        return self._owner.explain(end)

    def hold(self) -> AbstractContextManager[None]:
        """Keep the descriptors open while a thread or another event loop uses them."""
        return _Hold(self._enter, self._leave)

    def _enter(self) -> None:
        with self._guard:
            if self._closed:
                raise Conflict("this kernel has ended; open another")
            self._users += 1

    def _leave(self) -> None:
        with self._guard:
            self._users -= 1
            is_last = self._closed and not self._users
        if is_last:
            self._let_go()

    def note_attested(self) -> None:
        """Let whoever takes a kernel over know that it was looked at; the supervisor's first word says the same."""
        if self._shelf.lasts and self._collect_end() is None and not self._pid:
            self._shelf.keep("started", note="0")

    def restore(self, started: Kept | None, end: Kept | None) -> None:
        """Go on from what an earlier program has learned of it."""
        if started is not None:
            self._pid = int(started.note)
            self._plumbing.outputs.update(dict.fromkeys(started.fds, "stdout"))
        if end is not None:
            self._end = parse_end(end.note)

    async def started(self) -> None:
        """Wait until the program runs or could not be started."""
        if not self._pid:
            report = await self._first_report()
            if report.event == SupervisorEvent.FAILED:
                self._start_failed(report.pid, report.status)
                return
            self._pid = report.pid
        failure = await self._read_failure()
        if len(failure) == _FAILURE.size:
            self._pid = 0
            self._start_failed(*_FAILURE.unpack(failure))

    async def _first_report(self) -> SupervisorReport:
        control = self._plumbing.control
        while True:
            await anyio.wait_readable(control)
            if self._closed:
                # The sandbox was destroyed between the word that there is something and now.
                raise anyio.ClosedResourceError
            with suppress(BlockingIOError):
                report, fds = channel.receive(control, SupervisorReport, socket.MSG_PEEK)
                break
        if report is None:
            raise ConnectionResetError("the sandbox ended while a process was being started")
        if report.event == SupervisorEvent.STARTED:
            self._take_terminal(fds)
            self._shelf.keep("started", list(self._terminal()), str(report.pid))
        else:
            channel.close_all(fds)
        # Only now, so that whoever takes over from a program that was killed has the report or what it said.
        channel.receive_only(control, SupervisorReport)
        return report

    def _terminal(self) -> Sequence[int]:
        return list(self._plumbing.outputs) if self._command.terminal is not None else ()

    async def _read_failure(self) -> bytes:
        """Return what the child tells of its failure; nothing, once it is the program."""
        while (fd := self._plumbing.failures) is not None:
            try:
                failure = os.read(fd, _FAILURE.size)
            except BlockingIOError:
                await anyio.wait_readable(fd)
            else:
                self._plumbing.close_failures()
                return failure
        raise anyio.ClosedResourceError

    def _start_failed(self, stage: int, number: int) -> None:
        end, message = explain_failed_start(self._command, stage, number)
        self._plumbing.replace_output(message)
        self._shelf.forget("started")
        self._shelf.keep("plumbing", *self._plumbing.to_keep())
        self._set_end(end)

    def _set_end(self, end: ProcessEnd) -> None:
        if self._end is None:
            self._end = end
            self._shelf.keep("end", note=end_note(end))

    def _take_terminal(self, fds: list[int]) -> None:
        if self._command.terminal is None:
            channel.close_all(fds)
            return
        fd = channel.the_one(fds, stat.S_ISCHR)
        os.set_blocking(fd, False)
        self._plumbing.outputs[fd] = "stdout"

    async def output(self) -> AsyncGenerator[Output, None]:
        """Yield both streams as they come."""
        if self._read:
            raise Conflict("the output of this process is being read or was read already")
        self._read = True
        with select.epoll() as watched:
            for fd in self._plumbing.outputs:
                watched.register(fd, select.EPOLLIN)
            deadline = None
            while self._plumbing.outputs and not self._closed:
                if deadline is None and self._collect_end() is not None:
                    deadline = time.monotonic() + _LINGER_SECONDS
                for fd in await self._readable(watched, deadline):
                    data = self._outputs.read_chunk(fd)
                    if data:
                        yield self._outputs.output(fd, data)
                    elif data is not None:
                        watched.unregister(fd)
                        self._outputs.forget(fd)
                if deadline is not None and time.monotonic() > deadline:
                    break
        # What was written before the end is never lost to a slow reader.
        for fd in list(self._plumbing.outputs):
            for output in () if self._closed else self._outputs.read_rest(fd):
                yield output

    def descriptors(self) -> Mapping[Stream, int]:
        """Return the outputs themselves, for the caller to read."""
        self._read = True
        return {stream: fd for fd, stream in self._plumbing.outputs.items()}

    def stdin_descriptor(self) -> int:
        """Return standard input itself, for the caller to write."""
        return self._input_fd()

    async def _readable(self, watched: select.epoll, deadline: float | None) -> list[int]:
        """Return outputs that can be read; none if the process ended or the deadline passed."""
        ready = watched.poll(0)
        if ready:
            await anyio.lowlevel.checkpoint()
            return [fd for fd, _events in ready]
        control = self._plumbing.control.fileno()
        if deadline is None:
            watched.register(control, select.EPOLLIN)
        self._reader = watched.fileno()
        try:
            with (
                anyio.move_on_after(
                    None if deadline is None else max(0.0, deadline - time.monotonic())
                ),
                suppress(anyio.ClosedResourceError),
            ):
                await anyio.wait_readable(self._reader)
        finally:
            self._reader = None
            if deadline is None and not self._closed:
                watched.unregister(control)
        return [fd for fd, _events in watched.poll(0) if fd in self._plumbing.outputs]

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input, or to the terminal."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidRequest(f"standard input takes bytes, not {type(data).__name__}")
        view = memoryview(data)
        while view:
            fd = self._input_fd()
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                await anyio.wait_writable(fd)
            except OSError as error:
                raise Conflict("the process does not read its standard input any more") from error

    def _input_fd(self) -> int:
        if self._command.terminal is not None:
            fd = next(iter(self._plumbing.outputs), None)
        elif self._command.stdin:
            fd = self._plumbing.stdin
        else:
            raise InvalidRequest(
                "this command was started without standard input; start it with stdin=True"
            )
        if fd is None:
            raise Conflict("standard input of this process is closed")
        return fd

    async def close_stdin(self) -> None:
        """Let standard input end; on a terminal, by the character that stands for that."""
        if self._command.terminal is not None and not self._stdin_ended:
            self._stdin_ended = True
            await self.write(_END_OF_INPUT)
        if self._plumbing.stdin is not None:
            self._shelf.forget("stdin")
            os.close(self._plumbing.stdin)
            self._plumbing.stdin = None

    @property
    def end(self) -> ProcessEnd | None:
        """How it ended, if it has."""
        return self._collect_end()

    async def wait(self) -> ProcessEnd:
        """Return how the process ended."""
        await self._wait_until(lambda: self._collect_end() is not None)
        assert self._end is not None
        return self._end

    async def _wait_until(self, true: Callable[[], bool]) -> None:
        # One task at a time may wait for a descriptor; the next looks for itself.
        async with self._waiting:
            while not true() and not self._closed:
                with suppress(anyio.ClosedResourceError):
                    await anyio.wait_readable(self._plumbing.control)

    def _collect_end(self) -> ProcessEnd | None:
        """Read what the supervisor has reported, without waiting."""
        # Whoever runs a cell may be in another thread than those who wait for the end.
        with self._guard:
            return self._collect_end_alone()

    def _collect_end_alone(self) -> ProcessEnd | None:
        while not self._supervisor_gone and not self._closed and self._reports.poll(0):
            try:
                report = channel.receive_only(
                    self._plumbing.control, SupervisorReport, socket.MSG_PEEK
                )
            except BlockingIOError:
                break
            except OSError:
                report = None
            if report is None:
                self._supervisor_gone = True
                if self._end is None and self._plumbing.channel is not None:
                    # Init does not know the supervisors of kernels that joined, and kills nobody for them.
                    self._owner.kill_everything()
                # Without a word: the sandbox ended, or somebody inside killed the supervisor.
                if self._end is None:
                    lost = EndReason.KILLED if self._killed else EndReason.LOST
                    self._set_end(self._owner.explain(ProcessEnd(None, signals.SIGKILL, lost)))
            else:
                self._take_report(report)
                # Only now, for whoever may have to take over.
                channel.receive_only(self._plumbing.control, SupervisorReport)
            self._wake_others()
        return self._end

    def _take_report(self, report: SupervisorReport) -> None:
        if report.event == SupervisorEvent.STARTED:
            self._pid = report.pid  # a kernel: nobody waited for it
            self._shelf.keep("started", note=str(report.pid))
        elif report.event == SupervisorEvent.SIGNALLED:
            self._signals_sent += 1
        elif report.event == SupervisorEvent.ENDED and self._end is None:
            self._set_end(self._owner.explain(parse_status(report.status, killed=self._killed)))

    def _wake_others(self) -> None:
        # The reader of the outputs and those who wait for the end watch one socket: whoever is first takes
        # the report, and the others would wait for it forever.
        wake_waiting(self._plumbing.control)
        if self._ending is not None:
            wake_waiting(self._ending.fileno())
        if self._reader is not None:
            wake_waiting(self._reader)

    async def signal(self, number: int) -> None:
        """Send a signal to the process and its group."""
        check_signal(number)
        if self._collect_end() is None and not self._closed:
            self._signals_asked += 1
            self._tell(SupervisorRequest(op=SupervisorOp.SIGNAL, signal=number))
            await self._until_signalled(self._signals_asked)

    async def _until_signalled(self, count: int) -> None:
        """Whatever is done next must not be hit by it; a supervisor that was stopped is not waited for."""
        with anyio.move_on_after(_SIGNAL_SECONDS):
            # Whoever comes first reads the report, in whatever thread: there is no event to wait for.
            while not self._is_signalled(count):  # noqa: ASYNC110
                await anyio.sleep(_MOMENT)

    def _is_signalled(self, count: int) -> bool:
        return self._collect_end() is not None or self._closed or self._signals_sent >= count

    async def kill(self) -> None:
        """End everything that the process started."""
        if self._closed:
            return
        self._killed = True
        async with self._owner.awake():
            self._tell(SupervisorRequest(op=SupervisorOp.KILL))
            with anyio.move_on_after(_WAKE_SECONDS):
                await self._wait_until(self._has_no_supervisor)
                return
            # Somebody inside may have stopped it.
            self._owner.wake_supervisors()
            with anyio.move_on_after(_KILL_SECONDS):
                await self._wait_until(self._has_no_supervisor)
                return
            # It is stopped again and again, or outrun by what it should kill.
            self._owner.kill_everything()
            await self._wait_until(self._has_no_supervisor)

    def _has_no_supervisor(self) -> bool:
        self._collect_end()
        return self._supervisor_gone

    def _tell(self, request: SupervisorRequest) -> None:
        # The end of the process is noticed elsewhere.
        with suppress(OSError):
            channel.send(self._plumbing.control, request)

    async def resize(self, size: TerminalSize) -> None:
        """Change the terminal's size."""
        if self._command.terminal is None:
            raise InvalidRequest(
                "this process has no terminal to resize; start it with terminal=TerminalSize()"
            )
        if not isinstance(size, TerminalSize):
            raise InvalidRequest(f"size is {type(size).__name__}; it has to be a TerminalSize")
        set_terminal_size(self._input_fd(), size)

    async def close(self) -> None:
        """Kill it if it still runs and release what the host holds."""
        if self._closed:
            return
        if self._collect_end() is None:
            with anyio.CancelScope(shield=True):
                await self.kill()
                self._collect_end()
        self.release()

    def release(self) -> None:
        """Close the host's ends, and wake whoever waits on them."""
        with self._guard:
            if self._closed:
                return
            self._collect_end()
            self._end = self._end or ProcessEnd(None, signals.SIGKILL, EndReason.KILLED)
            self._closed = True
            in_use = bool(self._users)
        self._wake_others()
        if in_use and self._plumbing.channel is not None:
            # Whoever holds it wakes up, and the last one lets go.
            with suppress(OSError):
                self._plumbing.channel.shutdown(socket.SHUT_RDWR)
            return
        self._let_go()

    def _let_go(self) -> None:
        for watched in (self._activity, self._ending):
            if watched is not None:
                wake_waiting(watched.fileno())
                watched.close()
        leftover = list(self._plumbing.outputs)
        self._plumbing.outputs.clear()
        self._plumbing.close()
        # Something left in the background may go on printing; it must not die of a closed pipe.
        self._owner.released(self, leftover)


class _Hold:
    # By hand, because every cell has one, and a generator would cost as much as all else in it.

    def __init__(self, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self._enter = enter
        self._leave = leave

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *_error: object) -> None:
        self._leave()


KERNEL = Command(("kernel",))


def set_terminal_size(fd: int, size: TerminalSize) -> None:
    """Set rows and columns of a terminal."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
