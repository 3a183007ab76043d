"""A way to a node on which connections break: after so many bytes, wherever that is, or at once for WebSockets."""

from __future__ import annotations

import random
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CHUNK = 65536
_SECONDS = 60.0


class Unsteady:
    """Passes connections to a socket on, and cuts some of them off."""

    def __init__(self, target: Path, path: Path) -> None:
        self.address = f"unix://{path}"
        self.upgrades = 0  # connections that asked to become a WebSocket
        self.posts = 0  # requests that begin executions, as far as they stand at the beginning of what was sent
        self.cuts = 0
        self.lets_upgrade = True
        self.chance: random.Random | None = None  # who says when connections break; None: never
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._counting = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # A thread that accepts is woken by this, which closing alone does not do.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, ours: socket.socket) -> None:
        theirs = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs, suppress(OSError):
            theirs.connect(str(self._target))
            sending = threading.Thread(target=self._send, args=(ours, theirs), daemon=True)
            sending.start()
            self._pass_back(theirs, ours)
            for each in (ours, theirs):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            sending.join(_SECONDS)

    def _send(self, ours: socket.socket, theirs: socket.socket) -> None:
        with suppress(OSError):
            while data := ours.recv(_CHUNK):
                if not self._notes(data):
                    ours.shutdown(socket.SHUT_RDWR)
                    return
                theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)

    def _notes(self, data: bytes) -> bool:
        """Count what is asked for; return whether it is let through."""
        with self._counting:
            is_upgrade = b"pgrade: websocket" in data
            self.upgrades += is_upgrade
            self.posts += data.startswith(b"POST ") and b"/executions " in data.split(b"\r\n")[0]
            return self.lets_upgrade or not is_upgrade

    def _pass_back(self, theirs: socket.socket, ours: socket.socket) -> None:
        left = self._how_many()
        while data := theirs.recv(_CHUNK):
            if left is not None and len(data) >= left:
                ours.sendall(data[:left])
                with self._counting:
                    self.cuts += 1
                return
            ours.sendall(data)
            left = None if left is None else left - len(data)

    def _how_many(self) -> int | None:
        with self._counting:
            return None if self.chance is None else self.chance.randrange(1, 6000)


@contextmanager
def unsteady(target: Path) -> Iterator[Unsteady]:
    """Listen between a program and the socket of a node."""
    with tempfile.TemporaryDirectory(prefix="atoll-way-") as folder:
        way = Unsteady(target, Path(folder, "s"))
        try:
            yield way
        finally:
            way.close()
