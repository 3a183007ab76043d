"""The sockets that a node listens at: one that only its user can open, and one for everybody who can reach it."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atoll.errors import Conflict, Unavailable
from atoll.model.sizes import KIB

_BACKLOG = 1024
_MOST_UNSENT_BYTES = 128 * KIB


@contextmanager
def open_socket(path: Path) -> Iterator[socket.socket]:
    """Listen at a path that only this user can reach; what a dead node left there is replaced.

    Raises:
        Conflict: something else is there.
        Unavailable: there cannot be a socket there.
    """
    _make_room(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind(listener, path)
        listener.listen(_BACKLOG)
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)


@contextmanager
def open_tcp(host: str, port: int) -> Iterator[socket.socket]:
    """Listen at an address; port 0 is any that is free.

    Raises:
        Conflict: another program listens there.
        Unavailable: nobody can listen there.
    """
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(
            (address[0], address[1]), family=family, backlog=_BACKLOG, reuse_port=False
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                f"another program listens at {shown}",
                next_step=f"choose another port, such as --port {port + 1}, or --port 0 for any",
            ) from error
        raise Unavailable(
            f"cannot listen at {shown}: {error.strerror}",
            next_step="choose another address with --host and --port",
        ) from error
    with listener:
        # Connections inherit it. asyncio sets it on none whose socket does not name its protocol, as these; and then an answer
        # in two pieces takes 40 ms, until the other side acknowledges the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Else the system takes megabytes for somebody who does not read, and the time to make them goes off others'.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MOST_UNSENT_BYTES)
        yield listener


def _bind(listener: socket.socket, path: Path) -> None:
    # Set before, for between bind and chmod others could connect.
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise Unavailable(f"cannot listen at {path}: {error.strerror}") from error
    finally:
        os.umask(before)


def _make_room(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # nothing is there, or binding will say what is wrong
    if not stat.S_ISSOCK(mode):
        raise Conflict(f"{path} exists and is no socket; choose another with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise Unavailable(f"cannot listen at {path}: {error.strerror}") from error
    raise Conflict(f"another program listens at {path}; choose another path with --socket")
