"""Boots one sandbox: the host's half of the conversation with the child that becomes its init."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from atoll.engines.namespaces import channel
from atoll.engines.namespaces.wire import InitHello, SpawnRequest
from atoll.engines.namespaces.zygotes import Jail
from atoll.errors import Unavailable

_SECONDS = 10.0
_INNER_ID = 65532
# High, so that a host short of memory ends sandboxes before anything else.
_OOM_SCORE = "300"
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Booted:
    """A sandbox that is set up and has said hello."""

    init: socket.socket
    pid: int
    pidfd: int
    hello: InitHello

    def end(self) -> None:
        """Kill it, wait until every process is gone, and let go."""
        try:
            kill_and_wait(self.pidfd)
        finally:
            self.init.close()
            os.close(self.pidfd)


def boot(jail: Jail, request: SpawnRequest, fds: Sequence[int], *, host_id: int) -> Booted:
    """Make a sandbox; `host_id` is the id it runs as, or 0 if it maps itself to this user."""
    ours, theirs = channel.socket_pair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.settimeout(_SECONDS)
    pidfd = -1
    try:
        with theirs:
            pending = jail.spawn(request, [theirs.fileno(), *fds])
        try:
            pid = _receive_pid(ours)
            if pid:
                pidfd = os.pidfd_open(pid)
                if host_id:
                    _identify(pid, host_id)
                ours.send(b"g")
            pending.finish()
        finally:
            pending.abandon()
        return Booted(ours, pid, pidfd, _receive_hello(ours))
    except BaseException:
        ours.close()
        if pidfd >= 0:
            kill_and_wait(pidfd)
            os.close(pidfd)
        raise


def kill_and_wait(pidfd: int) -> None:
    """Kill a sandbox's init, and with it all its processes; return when they are gone."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(_SECONDS * 1000):
        raise Unavailable(f"processes of a sandbox did not end within {_SECONDS:g} s of being killed")


def is_over(pidfd: int) -> bool:
    """Return whether the process has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _receive_pid(boot_socket: socket.socket) -> int:
    """Return the child's pid as the kernel vouches for it, or 0 if the child failed before its hello."""
    room = socket.CMSG_SPACE(_CREDENTIALS.size)
    try:
        data, ancillary, _flags, _address = boot_socket.recvmsg(1, room)
    except TimeoutError as error:
        raise Unavailable("a new sandbox did not say hello in time; try again") from error
    boot_socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    for level, kind, content in ancillary:
        if data and level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(content)[0])
    return 0


def _identify(pid: int, host_id: int) -> None:
    """Give the child its id outside; only root can, for an id that is not its own."""
    try:
        for name in ("uid_map", "gid_map"):
            _write(f"/proc/{pid}/{name}", f"{_INNER_ID} {host_id} 1")
        _write(f"/proc/{pid}/oom_score_adj", _OOM_SCORE)
    except OSError as error:
        raise Unavailable(f"a new sandbox could not be given its id: {error.strerror}") from error


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _receive_hello(boot_socket: socket.socket) -> InitHello:
    try:
        hello = channel.receive_only(boot_socket, InitHello)
    except OSError as error:
        raise Unavailable(f"a new sandbox did not start: {error.strerror}; try again") from error
    if hello is None:
        raise Unavailable("a new sandbox ended before it said hello; try again")
    return hello
