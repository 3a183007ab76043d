"""Messages between the node and the proxy process: one JSON object per packet, with descriptors.

From the node: `configure` first, then `add`, `change`, `peers`, `reached`, `remove` and `ping`. From the proxy: `ready`, `attempts`, `certified`, `changed`,
`reach` and `health`. What is too long for a packet travels in sealed memory as the last descriptor.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from atoll.errors import InvalidRequest

# One half of them is for HTTP and rules, the other for the members of a private network.
MOST_LISTENERS = 128
# A packet has to fit into the socket's buffer whole, and others should fit beside it.
LONGEST_PACKET = 32 * 1024
_LONGEST_MESSAGE = 8 * 1024 * 1024
_IN_MEMORY = b"memory"
_F_ADD_SEALS, _F_GET_SEALS, _ALL_SEALS = 1033, 1034, 0xF

Message = Mapping[str, Any]


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected message sockets, not inherited by other programs."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def send(channel: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message; the descriptors stay open here. Raises what `sendmsg` raises."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) <= LONGEST_PACKET:
        _send(channel, body, fds)
        return
    if len(body) > _LONGEST_MESSAGE:
        raise InvalidRequest(
            f"{len(body)} bytes of rules are too many; the most is {_LONGEST_MESSAGE}"
        )
    memory = _sealed_memory(body)
    try:
        _send(channel, _IN_MEMORY, [*fds, memory])
    finally:
        os.close(memory)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return one message and its descriptors, None at the end.

    Raises:
        InvalidRequest: this is no message; its descriptors are closed.
    """
    room = socket.CMSG_SPACE((MOST_LISTENERS + 1) * array.array("i").itemsize)
    try:
        body, ancillary, flags, _ = channel.recvmsg(
            LONGEST_PACKET + 1, room, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None
    fds = _descriptors(ancillary)
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise InvalidRequest("a control message is too long")
        if not body and not fds:
            return None
        return _decode(_read_memory(fds) if body == _IN_MEMORY else body), fds
    except BaseException:
        close_all(fds)
        raise


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def _send(channel: socket.socket, body: bytes, fds: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sendmsg([body], rights, socket.MSG_NOSIGNAL)


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return list(fds)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise InvalidRequest("a control message is not JSON") from error
    if not isinstance(message, dict):
        raise InvalidRequest("a control message is not an object")
    return message


def _sealed_memory(body: bytes) -> int:
    fd = os.memfd_create("atoll-egress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(body)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _read_memory(fds: list[int]) -> bytes:
    """Take the last descriptor away and return what is in it."""
    if not fds:
        raise InvalidRequest("a control message names memory that did not come")
    fd = fds.pop()
    try:
        size = os.fstat(fd).st_size
        # Unsealed it could shrink or change while it is read.
        if size > _LONGEST_MESSAGE or fcntl.fcntl(fd, _F_GET_SEALS) != _ALL_SEALS:
            raise InvalidRequest("a control message came in memory that is too long or not sealed")
        return os.pread(fd, size, 0)
    except OSError as error:
        raise InvalidRequest("a control message came in something else than memory") from error
    finally:
        os.close(fd)
