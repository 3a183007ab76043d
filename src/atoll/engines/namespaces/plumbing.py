"""What connects the host with one process of a sandbox: control socket, pipes, a kernel's channel, the command itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import anyio

from atoll.engines.namespaces import channel
from atoll.engines.namespaces.lasting_keeper import Kept
from atoll.model.process import Command, Output, Stream

_CONTROL, _CHANNEL, _FAILURES = "control", "channel", "failures"


@dataclass(slots=True)
class Plumbing:
    """The host's ends of what connects it with one process."""

    control: socket.socket
    failures: int | None = None  # ends when the program runs
    stdin: int | None = None
    outputs: dict[int, Stream] = field(default_factory=dict)
    channel: socket.socket | None = None

    def close(self) -> None:
        """Close everything."""
        self.control.close()
        if self.channel is not None:
            wake_waiting(self.channel)
            self.channel.close()
        self.close_failures()
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None
        channel.close_all(list(self.outputs))
        self.outputs.clear()

    def to_keep(self) -> tuple[Sequence[int], str]:
        """Return the descriptors that `restore_plumbing` takes, and the note; standard input ends by itself."""
        kinds = [_CONTROL, *(stream for stream in self.outputs.values())]
        fds = [self.control.fileno(), *self.outputs]
        if self.channel is not None:
            kinds.append(_CHANNEL)
            fds.append(self.channel.fileno())
        if self.failures is not None:
            kinds.append(_FAILURES)
            fds.append(self.failures)
        return fds, " ".join(kinds)

    def replace_output(self, message: Output) -> None:
        """Let what the host says of a program that could not be started be its output."""
        for fd in [fd for fd, stream in self.outputs.items() if stream == message.stream]:
            del self.outputs[fd]
            os.close(fd)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.outputs[reading] = message.stream
        os.write(writing, message.data)
        os.close(writing)

    def close_failures(self) -> None:
        """Stop waiting for word of a failed start."""
        if self.failures is not None:
            wake_waiting(self.failures)
            os.close(self.failures)
            self.failures = None


def restore_plumbing(kept: Kept, stdin: Kept | None) -> Plumbing:
    """Return what an earlier program has kept."""
    found = dict(zip(kept.note.split(), kept.fds, strict=True))
    plumbing = Plumbing(_as_socket(found.pop(_CONTROL)))
    plumbing.failures = found.pop(_FAILURES, None)
    plumbing.stdin = None if stdin is None else stdin.fds[0]
    if _CHANNEL in found:
        plumbing.channel = _as_socket(found.pop(_CHANNEL))
    plumbing.outputs = {
        fd: "stdout" if name == "stdout" else "stderr" for name, fd in found.items()
    }
    return plumbing


def _as_socket(fd: int) -> socket.socket:
    restored = socket.socket(fileno=fd)
    restored.setblocking(False)
    return restored


def wake_waiting(descriptor: socket.socket | int) -> None:
    """Wake the tasks of this thread that wait for a descriptor which is about to close."""
    with suppress(anyio.NoEventLoopError):  # then there are none
        anyio.notify_closing(descriptor)


def open_plumbing(
    command: Command, *, with_channel: bool = False
) -> tuple[Plumbing, socket.socket, list[int]]:
    """Return the host's ends, the supervisor's control socket, and where the process tells of a failed
    start and has its standard streams. With a channel, standard input is the process's end of it."""
    control, theirs = channel.socket_pair()
    plumbing = Plumbing(control)
    given: list[int] = []
    try:
        control.setblocking(False)
        plumbing.failures, failures = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        given.append(failures)
        if with_channel:
            _open_channel(plumbing, given)
            _open_outputs(plumbing, given)
        elif command.terminal is None:
            _open_streams(command, plumbing, given)
    except BaseException:
        plumbing.close()
        theirs.close()
        channel.close_all(given)
        raise
    return plumbing, theirs, given


def _open_channel(plumbing: Plumbing, given: list[int]) -> None:
    """Give the plumbing a kernel's channel, and the kernel's end to `given`."""
    plumbing.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    given.append(theirs.detach())
    plumbing.channel.setblocking(False)


def _open_streams(command: Command, plumbing: Plumbing, given: list[int]) -> None:
    read_end, write_end = _open_pipe()
    given.append(read_end)
    if command.stdin:
        os.set_blocking(write_end, False)
        plumbing.stdin = write_end
    else:
        os.close(write_end)
    _open_outputs(plumbing, given)


def _open_outputs(plumbing: Plumbing, given: list[int]) -> None:
    """Give the plumbing two outputs, and the process's ends to `given`."""
    streams: tuple[Stream, ...] = ("stdout", "stderr")
    for stream in streams:
        read_end, write_end = _open_pipe()
        os.set_blocking(read_end, False)
        plumbing.outputs[read_end] = stream
        given.append(write_end)


def _open_pipe() -> tuple[int, int]:
    """Return a pipe that programs can open again by name, as /dev/stdout."""
    ends = os.pipe2(os.O_CLOEXEC)
    # It belongs to the host's user, whom the sandbox's is not. Its name leads only through its own processes.
    os.fchmod(ends[0], 0o666)
    return ends


def open_kernel_plumbing() -> tuple[Plumbing, list[int]]:
    """Return the host's ends for a kernel, and the descriptors that go to the zygote, for the caller to close."""
    # Init has one of the ends, and never waits.
    control, supervisor = channel.socket_pair(blocking=False)
    plumbing = Plumbing(control)
    given = [supervisor.detach()]
    try:
        plumbing.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        given.append(theirs.detach())
        # From its first word on, so that the machine vouches for who says it.
        plumbing.channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        stdin, nobody = _open_pipe()
        os.close(nobody)
        given.append(stdin)
        _open_outputs(plumbing, given)
    except BaseException:
        plumbing.close()
        channel.close_all(given)
        raise
    return plumbing, given
