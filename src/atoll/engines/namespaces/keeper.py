"""The keeper, seen from the host: makes jails and detached mounts.

All calls block for a millisecond or so and are made from worker threads.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from atoll.engines.namespaces import channel
from atoll.engines.namespaces.mounts import Template
from atoll.engines.namespaces.wire import KeeperOp, KeeperRequest, StepReply
from atoll.engines.namespaces.zygotes import Jail, ZygoteAge, check_reply
from atoll.errors import InvalidRequest, Unavailable, Unsupported

_SECONDS = 10.0


class KeeperConnection:
    """What every keeper, the process that keeps what privilege there is, can be asked for."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_SECONDS)
        self._channel = connection
        self._asking = threading.Lock()

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, and all jails with it."""
        return self._channel.fileno() < 0 or bool(events_of(self._channel, 0) & select.POLLHUP)

    def make_jail(
        self,
        template: Template,
        uid: int,
        *,
        age: ZygoteAge,
        failpoint: int = 0,
        omit: int = 0,
    ) -> Jail:
        """Build a jail from a template; its zygotes run as `uid`, or as this user if that is 0."""
        ours, theirs = channel.socket_pair()
        plan = channel.sealed_memory("plan", b"".join(bytes(entry) for entry in template.plan))
        request = KeeperRequest(
            op=KeeperOp.JAIL,
            uid=uid,
            plan_entries=len(template.plan),
            failpoint=failpoint,
            omit=omit,
        )
        try:
            with theirs:
                reply = self._ask(request, [plan, theirs.fileno()])[0]
            return Jail(ours, reply.pid, template, age)
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(plan)

    def open_mount(self, path: str, *, writable: bool, uid: int) -> int:
        """Return a detached mount of a host directory whose owner appears as `uid`."""
        request = KeeperRequest(
            op=KeeperOp.MOUNT, writable=writable, uid=uid, path=os.fsencode(path)
        )
        try:
            return self._ask(request, [])[1][0]
        except Unavailable as error:
            number = error.details.get("errno")
            if number in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise InvalidRequest(
                    f"mount source {path!r} is not a directory reached without links", path=path
                ) from error
            if number == errno.EINVAL:
                raise Unsupported(
                    f"the file system of {path!r} cannot be shown under another owner;"
                    " put the directory on ext4, xfs or btrfs",
                    path=path,
                ) from error
            raise

    def open_image(self, image: int, *, uid: int) -> int:
        """Return a detached mount of the file system in an open file, whose owner there appears as `uid`.

        The file stays open, with its locks, until the mount is gone everywhere.
        """
        request = KeeperRequest(op=KeeperOp.MOUNT, writable=True, uid=uid)
        return self._ask(request, [image])[1][0]

    def sweep_at_end(self, path: Path) -> None:
        """Have the cgroup directories below `path` removed when the keeper ends."""
        self._ask(KeeperRequest(op=KeeperOp.SWEEP, path=os.fsencode(path)), [])

    def leave(self) -> None:
        """Let go of the keeper: one that lasts waits for somebody else now. Safe to call twice."""
        self._channel.close()

    def _ask(self, request: KeeperRequest, fds: Sequence[int]) -> tuple[StepReply, list[int]]:
        with self._asking, answering():
            channel.send(self._channel, request, fds)
            reply, passed = channel.receive(self._channel, StepReply)
        return check_reply(reply), passed


class OwnedKeeper(KeeperConnection):
    """A keeper that ends with this process."""

    def __init__(self, program: Path, *, rootless: bool) -> None:
        ours, theirs = channel.socket_pair()
        super().__init__(ours)
        try:
            with theirs:
                arguments = (str(os.getpid()), mode_of(rootless=rootless))
                self._process = start_program(program, arguments, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        try:
            check_reply(channel.receive_only(ours, StepReply))
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End every jail and the keeper; returns when all processes are gone. Safe to call twice."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def mode_of(*, rootless: bool) -> str:
    """Return how the keeper is told whether there is root to keep."""
    return "user" if rootless else "root"


def start_program(
    program: Path, arguments: Sequence[str], fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Run the keeper, with nothing of this process but some descriptors."""
    try:
        return subprocess.Popen(
            [program, *arguments, *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            pass_fds=fds,
        )
    except OSError as error:
        raise Unavailable(
            f"the keeper program {program} cannot be run: {error.strerror}; install the package again"
        ) from error


@contextmanager
def answering() -> Iterator[None]:
    """Raise `Unavailable` if the keeper is not there any more."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"the keeper does not answer: {error.strerror or error}; open the engine anew"
        ) from error


def events_of(descriptor: socket.socket | int, seconds: float) -> int:
    """Return what there is to see of a descriptor within so many seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return sum(events for _fd, events in poll.poll(seconds * 1000))
