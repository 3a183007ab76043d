"""Messages with descriptors over SOCK_SEQPACKET sockets, and other small system interfaces."""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

from atoll.errors import Unavailable

Struct = TypeVar("Struct", bound=ctypes.Structure)

_MOST_FDS = 20
_F_ADD_SEALS, _ALL_SEALS = 1033, 0xF


def socket_pair(*, blocking: bool = True) -> tuple[socket.socket, socket.socket]:
    """Return two connected message sockets, not inherited by other programs."""
    kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
    return socket.socketpair(socket.AF_UNIX, kind if blocking else kind | socket.SOCK_NONBLOCK)


def send(
    channel: socket.socket, message: bytes | ctypes.Structure, fds: Sequence[int] = ()
) -> None:
    """Send one message with descriptors."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sendmsg([bytes(message)], rights, socket.MSG_NOSIGNAL)


def receive(
    channel: socket.socket, kind: type[Struct], flags: int = 0
) -> tuple[Struct | None, list[int]]:
    """Return one message and its descriptors; None for the end or a message of another size.

    With `socket.MSG_PEEK` it stays to be read, and the descriptors are copies.
    """
    size = ctypes.sizeof(kind)
    room = socket.CMSG_SPACE(_MOST_FDS * array.array("i").itemsize)
    flags |= socket.MSG_CMSG_CLOEXEC
    try:
        data, ancillary, *_ = channel.recvmsg(size + 1, room, flags)
    except ConnectionResetError:
        # The other side left without reading everything. The kernel tells that first; what it said comes now.
        data, ancillary, *_ = channel.recvmsg(size + 1, room, flags)
    fds = array.array("i")
    for level, type_, content in ancillary:
        if level == socket.SOL_SOCKET and type_ == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if len(data) != size:
        close_all(fds)
        return None, []
    return kind.from_buffer_copy(data), list(fds)


def receive_only(channel: socket.socket, kind: type[Struct], flags: int = 0) -> Struct | None:
    """Return one message; descriptors that come with it are closed."""
    message, fds = receive(channel, kind, flags)
    close_all(fds)
    return message


def the_one(fds: Sequence[int], is_kind: Callable[[int], bool]) -> int:
    """Return the one descriptor of a message from inside, which has to be of a kind (`stat.S_ISREG`).

    Raises:
        Unavailable: it is not what was asked for; all are closed.
    """
    if len(fds) == 1 and is_kind(os.fstat(fds[0]).st_mode):
        return fds[0]
    close_all(fds)
    raise Unavailable("the sandbox answered with something else than it was asked for; destroy it")


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def sealed_memory(name: str, content: bytes) -> int:
    """Return a descriptor of memory that holds `content` and can never change again."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
    return fd
