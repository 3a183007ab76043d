"""A process of a namespaces sandbox: pipes or a terminal, and the control socket of its supervisor."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal as signals
import socket
import struct
import termios
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from atoll.engines.namespaces import channel
from atoll.engines.namespaces.wire import (
    RunFlag,
    RunHeader,
    StartStage,
    SupervisorEvent,
    SupervisorOp,
    SupervisorReport,
    SupervisorRequest,
)
from atoll.errors import Conflict, InvalidRequest, LimitExceeded, Unavailable
from atoll.model.ids import ProcessId, new_process_id
from atoll.model.process import Command, EndReason, Output, ProcessEnd, Stream, TerminalSize

# How long output is still read after the end of a process while something it left behind keeps it open.
_LINGER_SECONDS = 0.2
_CHUNK = 65536
# More than a pipe holds.
_LAST_CHUNKS = 32
_KILL_SECONDS = 5.0


@dataclass(slots=True)
class Plumbing:
    """The host's ends of what connects it with one process."""

    control: socket.socket
    stdin: int | None = None
    outputs: dict[int, Stream] = field(default_factory=dict)

    def close(self) -> None:
        """Close everything."""
        self.control.close()
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None
        channel.close_all(list(self.outputs))
        self.outputs.clear()


class NamespaceProcess:
    """A program running in a namespaces sandbox."""

    def __init__(
        self,
        command: Command,
        plumbing: Plumbing,
        explain: Callable[[ProcessEnd], ProcessEnd],
        kill_all: Callable[[], None],
        drain: Callable[[list[int]], None],
        released: Callable[[NamespaceProcess], None],
    ) -> None:
        self._command = command
        self._id = new_process_id()
        self._plumbing = plumbing
        self._explain = explain
        self._kill_all = kill_all
        self._drain = drain
        self._released = released
        self._pid = 0
        self._end: ProcessEnd | None = None
        self._killed = False
        self._supervisor_gone = False
        self._closed = False
        self._read = False
        self._waiting = anyio.Lock()
        self._early_output: list[Output] = []
        self._started = time.monotonic()

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

    async def started(self) -> None:
        """Wait until the program runs or could not be started."""
        control = self._plumbing.control
        while True:
            await anyio.wait_readable(control)
            with suppress(BlockingIOError):
                report, fds = channel.receive(control, SupervisorReport)
                break
        if report is None:
            channel.close_all(fds)
            raise Unavailable("the sandbox ended while a process was being started")
        if report.event == SupervisorEvent.FAILED:
            self._start_failed(report)
        else:
            self._pid = report.pid
            self._take_terminal(fds)

    def _start_failed(self, report: SupervisorReport) -> None:
        stage, reason = report.pid, os.strerror(report.status)
        program = self._command.argv[0]
        if stage == StartStage.EXEC:
            missing = report.status in (errno.ENOENT, errno.ENOTDIR)
            self._end = ProcessEnd(127 if missing else 126, None, EndReason.EXITED)
            text = f"{program}: {'not found' if missing else reason}\n"
            stream: Stream = "stdout" if self._command.terminal else "stderr"
            self._early_output.append(Output(stream, text.encode("utf-8", "surrogateescape"), 0.0))
            return
        if stage == StartStage.DIRECTORY:
            raise InvalidRequest(
                f"working directory {self._command.cwd!r} cannot be entered: {reason}; make it first"
            )
        if report.status in (errno.EAGAIN, errno.ENOMEM):
            raise LimitExceeded(
                "the sandbox has no room for another process; end some, or create it with higher limits"
            )
        raise Unavailable(f"{program} could not be started: {reason}")

    def _take_terminal(self, fds: list[int]) -> None:
        if not fds:
            return
        os.set_blocking(fds[0], False)
        self._plumbing.outputs[fds[0]] = "stdout"

    async def output(self) -> AsyncIterator[Output]:
        """Yield both streams as they come."""
        if self._read:
            raise Conflict("the output of this process is being read or was read already")
        self._read = True
        for early in self._early_output:
            yield early
        with select.epoll() as watched:
            for fd in self._plumbing.outputs:
                watched.register(fd, select.EPOLLIN)
            deadline = None
            while self._plumbing.outputs and not self._closed:
                if deadline is None and self._collect_end() is not None:
                    deadline = time.monotonic() + _LINGER_SECONDS
                for fd in await self._readable(watched, deadline):
                    data = self._read_chunk(fd)
                    if data:
                        yield self._output(fd, data)
                    elif data is not None:
                        watched.unregister(fd)
                        self._forget(fd)
                if deadline is not None and time.monotonic() > deadline:
                    break
        # What was written before the end is never lost to a slow reader.
        for fd in list(self._plumbing.outputs):
            for _ in range(_LAST_CHUNKS):
                data = None if self._closed else self._read_chunk(fd)
                if not data:
                    break
                yield self._output(fd, data)

    async def _readable(self, watched: select.epoll, deadline: float | None) -> list[int]:
        """Return outputs that can be read; none if the process ended or the deadline passed."""
        ready = watched.poll(0)
        if ready:
            await anyio.lowlevel.checkpoint()
            return [fd for fd, _events in ready]
        control = self._plumbing.control.fileno()
        if deadline is None:
            watched.register(control, select.EPOLLIN)
        try:
            with anyio.move_on_after(None if deadline is None else max(0.0, deadline - time.monotonic())):
                await anyio.wait_readable(watched.fileno())
        finally:
            if deadline is None and not self._closed:
                watched.unregister(control)
        return [fd for fd, _events in watched.poll(0) if fd in self._plumbing.outputs]

    def _output(self, fd: int, data: bytes) -> Output:
        return Output(self._plumbing.outputs[fd], data, time.monotonic() - self._started)

    def _forget(self, fd: int) -> None:
        del self._plumbing.outputs[fd]
        os.close(fd)

    def _read_chunk(self, fd: int) -> bytes | None:
        """Return bytes, b'' at the end, None if there are none at present."""
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            # The last process has let go of a terminal.
            if error.errno == errno.EIO:
                return b""
            raise

    async def write(self, data: bytes) -> None:
        """Send bytes to standard input, or to the terminal."""
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
            raise InvalidRequest("this command was started without standard input; start it with stdin=True")
        if fd is None:
            raise Conflict("standard input of this process is closed")
        return fd

    async def close_stdin(self) -> None:
        """Let standard input end."""
        if self._plumbing.stdin is not None:
            os.close(self._plumbing.stdin)
            self._plumbing.stdin = None

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
        while not self._supervisor_gone and not self._closed:
            try:
                report = channel.receive_only(self._plumbing.control, SupervisorReport)
            except BlockingIOError:
                break
            except OSError:
                report = None
            if report is None:
                self._supervisor_gone = True
                # Without a word: the sandbox ended, or somebody inside killed the supervisor.
                lost = EndReason.KILLED if self._killed else EndReason.LOST
                self._end = self._end or self._explain(ProcessEnd(None, signals.SIGKILL, lost))
            elif report.event == SupervisorEvent.ENDED:
                self._end = self._explain(self._ended(report.status))
        return self._end

    def _ended(self, status: int) -> ProcessEnd:
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return ProcessEnd(code, None, EndReason.EXITED)
        killed = self._killed and -code == signals.SIGKILL
        return ProcessEnd(None, -code, EndReason.KILLED if killed else EndReason.SIGNALLED)

    async def signal(self, number: int) -> None:
        """Send a signal to the process and its group."""
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= signals.SIGRTMAX:
            raise InvalidRequest(f"{number!r} is not a signal number; 15 asks to end, 9 ends")
        if self._collect_end() is None and not self._closed:
            self._tell(SupervisorRequest(op=SupervisorOp.SIGNAL, signal=number))

    async def kill(self) -> None:
        """End everything that the process started."""
        if self._closed:
            return
        self._killed = True
        self._tell(SupervisorRequest(op=SupervisorOp.KILL))
        with anyio.move_on_after(_KILL_SECONDS):
            await self._wait_until(self._has_no_supervisor)
            return
        # It was stopped from inside, or is outrun by what it should kill.
        self._kill_all()

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
            raise InvalidRequest("this process has no terminal to resize; start it with terminal=TerminalSize()")
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
        if self._closed:
            return
        self._collect_end()
        self._end = self._end or ProcessEnd(None, signals.SIGKILL, EndReason.KILLED)
        self._closed = True
        anyio.notify_closing(self._plumbing.control)
        # Something left in the background may go on printing; it must not die of a closed pipe.
        self._drain(list(self._plumbing.outputs))
        self._plumbing.outputs.clear()
        self._plumbing.close()
        self._released(self)


def payload(command: Command, env: Mapping[str, str], directory: str) -> bytes:
    """Return the command as the supervisor reads it."""
    strings = [directory, *command.argv, *(f"{name}={value}" for name, value in env.items())]
    text = b"".join(each.encode("utf-8", "surrogateescape") + b"\0" for each in strings)
    size = command.terminal or TerminalSize()
    header = RunHeader(
        flags=RunFlag.TERMINAL if command.terminal else 0,
        arguments=len(command.argv),
        variables=len(env),
        rows=size.rows,
        columns=size.columns,
        text_bytes=len(text),
    )
    return bytes(header) + text


def open_plumbing(command: Command) -> tuple[Plumbing, socket.socket, list[int]]:
    """Return the host's ends, the supervisor's control socket, and the process's standard streams."""
    control, theirs = channel.socket_pair()
    control.setblocking(False)
    plumbing = Plumbing(control)
    if command.terminal is not None:
        return plumbing, theirs, []
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    if command.stdin:
        os.set_blocking(write_end, False)
        plumbing.stdin = write_end
    else:
        os.close(write_end)
    streams = [read_end]
    for stream in ("stdout", "stderr"):
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        plumbing.outputs[read_end] = "stdout" if stream == "stdout" else "stderr"
        streams.append(write_end)
    return plumbing, theirs, streams


def set_terminal_size(fd: int, size: TerminalSize) -> None:
    """Set rows and columns of a terminal."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
