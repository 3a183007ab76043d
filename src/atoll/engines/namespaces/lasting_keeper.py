"""A keeper that outlives the program which started it, and holds descriptors by name for the next one.

`keep` and `forget` never wait for it; all other calls are made from worker threads.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from atoll.engines.contract import Lasting
from atoll.engines.namespaces import channel
from atoll.engines.namespaces.keeper import (
    KeeperConnection,
    answering,
    events_of,
    mode_of,
    start_program,
)
from atoll.engines.namespaces.wire import (
    MAX_KEPT_FDS,
    MAX_KEPT_NAME,
    MAX_KEPT_NOTE,
    VERSION,
    KeeperHello,
    KeeperOp,
    KeptEntry,
    StepReply,
)
from atoll.engines.namespaces.zygotes import check_reply
from atoll.errors import Conflict, InvalidRequest, LimitExceeded, Unavailable

_SECONDS = 10.0
# How long a keeper that is ending is waited for: its sandboxes have to go first.
_ENDING_SECONDS = 30.0
# How long somebody who has just been killed may seem to be connected.
_BUSY_SECONDS = 2.0
_MOMENT = 0.01
# What a keeper needs for itself.
_SPARE_DESCRIPTORS = 64
_SOCKET, _LOCK = "keeper.sock", "keeper.lock"


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept under a name; some of its descriptors are missing if it is not whole."""

    fds: Sequence[int]
    note: str
    is_whole: bool

    def close(self) -> None:
        """Let go of it."""
        channel.close_all(self.fds)


class LastingKeeper(KeeperConnection):
    """A keeper that outlives this process, and holds for the next one what it is given."""

    def __init__(self, connection: socket.socket, hello: KeeperHello) -> None:
        super().__init__(connection)
        self.pid = int(hello.pid)
        self._pidfd = os.pidfd_open(self.pid)
        self._most = int(hello.most_descriptors) - _SPARE_DESCRIPTORS
        self._counting = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {}
        self._total = 0

    def keep(self, name: str, fds: Sequence[int] = (), note: str = "") -> None:
        """Have descriptors kept under `group/rest`, in place of what was; whatever is sent later comes after it.

        Raises:
            LimitExceeded: the keeper has no room for more descriptors.
        """
        _check_entry(name, fds, note)
        self._count(name, len(fds))
        entry = KeptEntry(op=KeeperOp.KEEP, fds=len(fds), name=name.encode(), note=note.encode())
        with answering():
            channel.send(self._channel, entry, fds)

    def forget(self, name: str) -> None:
        """Let go of a name, or of all that begin with one that ends in a slash."""
        self._uncount(name)
        with suppress(OSError):  # then there is nothing left to forget
            channel.send(self._channel, KeptEntry(op=KeeperOp.FORGET, name=name.encode()))

    def recall(self) -> Mapping[str, Kept]:
        """Return copies of all that is kept, by name."""
        found: dict[str, Kept] = {}
        with self._asking, answering():
            channel.send(self._channel, KeptEntry(op=KeeperOp.RECALL))
            while True:
                entry, fds = channel.receive(self._channel, KeptEntry)
                if entry is None:
                    raise Unavailable("the keeper ended while it was asked; open the engine anew")
                if entry.op == KeeperOp.RECALL:
                    return found
                name = entry.name.decode()
                found[name] = Kept(fds, entry.note.decode(), len(fds) == entry.fds)
                self._count(name, entry.fds)

    def end(self) -> None:
        """End every jail and the keeper; returns when all processes are gone. Safe to call twice."""
        if self._channel.fileno() < 0:
            return
        with suppress(OSError):
            channel.send(self._channel, KeptEntry(op=KeeperOp.END))
        if not events_of(self._pidfd, _ENDING_SECONDS):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            events_of(self._pidfd, _SECONDS)
        self.leave()

    def leave(self) -> None:
        """Let go of the keeper."""
        if self._channel.fileno() >= 0:
            super().leave()
            os.close(self._pidfd)

    def _count(self, name: str, fds: int) -> None:
        with self._counting:
            names = self._counts.setdefault(name.partition("/")[0], {})
            total = self._total + fds - names.get(name, 0)
            if total > self._most:
                raise LimitExceeded(
                    f"the keeper holds {self._total} descriptors, the most is {self._most};"
                    " destroy some sandboxes, or raise the limit of open files",
                    limit=self._most,
                )
            names[name], self._total = fds, total

    def _uncount(self, name: str) -> None:
        with self._counting:
            group = name.partition("/")[0]
            names = self._counts.get(group, {})
            for each in [each for each in names if each == name or _is_below(each, name)]:
                self._total -= names.pop(each)
            if not names:
                self._counts.pop(group, None)


def find_lasting_keeper(lasting: Lasting) -> LastingKeeper | None:
    """Return the keeper of a directory, if there is one.

    Raises:
        Conflict: another program is connected to it.
    """
    with _open_directory(lasting.directory) as directory:
        return _find(directory)


def open_lasting_keeper(program: Path, lasting: Lasting, *, rootless: bool) -> LastingKeeper:
    """Return the keeper of a directory; started if there is none.

    Raises:
        Conflict: another program is connected to it.
    """
    deadline = time.monotonic() + _ENDING_SECONDS
    with _open_directory(lasting.directory) as directory:
        while time.monotonic() < deadline:
            if (keeper := _find(directory)) is not None:
                return keeper
            if not _start_lasting(program, directory, lasting, rootless=rootless):
                time.sleep(_MOMENT)  # the last one has not ended yet
    raise Unavailable(
        f"the last keeper of {lasting.directory} did not end within {_ENDING_SECONDS:g} s; try again"
    )


def _find(directory: int) -> LastingKeeper | None:
    with suppress(FileNotFoundError, ConnectionError):
        # By way of the descriptor, because a socket's own path may have 107 bytes only.
        return _connect(f"/proc/self/fd/{directory}/{_SOCKET}")
    return None


def _connect(path: str) -> LastingKeeper:
    """Connect to a keeper; raise `ConnectionError` or `FileNotFoundError` if there is none."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            hello = _greet(connection, path)
            if hello.error != errno.EBUSY:
                return LastingKeeper(connection, _check_hello(hello))
        except BaseException:
            connection.close()
            raise
        connection.close()
        if time.monotonic() > deadline:
            raise Conflict("these sandboxes belong to another program that runs; end it first")
        time.sleep(_MOMENT)


def _greet(connection: socket.socket, path: str) -> KeeperHello:
    connection.settimeout(_SECONDS)
    connection.connect(path)
    hello = channel.receive_only(connection, KeeperHello)
    if hello is None:
        raise ConnectionResetError
    return hello


def _check_hello(hello: KeeperHello) -> KeeperHello:
    if hello.error == errno.EACCES:
        raise Unavailable("the keeper belongs to another user; choose another directory")
    if hello.version != VERSION:
        raise Unavailable(
            f"the sandboxes that are left speak version {hello.version}, not {VERSION};"
            " wait until their lease is over, or end them with the program that made them"
        )
    check_reply(StepReply(step=hello.step, error=hello.error))
    return hello


def _start_lasting(program: Path, directory: int, lasting: Lasting, *, rootless: bool) -> bool:
    """Start a keeper, unless the last one still lives."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(_LOCK, flags, 0o600, dir_fd=directory)
    try:
        # It belongs to the open file, which the keeper gets: whoever has it is the only one.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with _listen(directory) as listener:
            arguments = (str(round(lasting.lease_seconds * 1000)), mode_of(rootless=rootless))
            code = start_program(program, arguments, [listener.fileno(), lock]).wait(_SECONDS)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    if code:
        raise Unavailable(f"the keeper program {program} does not start; install the package again")
    return True


@contextmanager
def _listen(directory: int) -> Iterator[socket.socket]:
    kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_UNIX, kind) as listener:
        with suppress(FileNotFoundError):
            os.unlink(_SOCKET, dir_fd=directory)
        listener.bind(f"/proc/self/fd/{directory}/{_SOCKET}")
        listener.listen()
        yield listener


def prepare_directory(path: Path) -> Path:
    """Make a directory if need be, and return its own path."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path.resolve(strict=True)
    except OSError as error:
        raise Unavailable(f"{path} cannot be opened: {error.strerror}; set ATOLL_DATA") from error


@contextmanager
def _open_directory(path: Path) -> Iterator[int]:
    """Open a directory that is this user's alone."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(prepare_directory(path), flags)
    try:
        facts = os.fstat(fd)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise Unavailable(
                f"{path} has to be this user's alone, since whoever reaches it reaches all sandboxes;"
                " make it so with `chmod 700`"
            )
        yield fd
    finally:
        os.close(fd)


def _check_entry(name: str, fds: Sequence[int], note: str) -> None:
    group, slash, rest = name.partition("/")
    if not (group and slash and rest) or name.endswith("/"):
        raise InvalidRequest(f"{name[:80]!r} has to have the form group/rest")
    if len(name.encode()) >= MAX_KEPT_NAME or len(note.encode()) >= MAX_KEPT_NOTE:
        raise InvalidRequest(
            f"name {name[:80]!r} or its note is too long; the most is {MAX_KEPT_NAME - 1} and"
            f" {MAX_KEPT_NOTE - 1} bytes"
        )
    if len(fds) > MAX_KEPT_FDS:
        raise InvalidRequest(f"{len(fds)} descriptors are too many; the most is {MAX_KEPT_FDS}")


def _is_below(name: str, prefix: str) -> bool:
    return prefix.endswith("/") and name.startswith(prefix)
