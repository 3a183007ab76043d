"""The keeper, its jails and their zygotes, seen from the host.

All calls block for a millisecond or so and are made from worker threads.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from atoll.engines.namespaces import channel
from atoll.engines.namespaces.mounts import Template
from atoll.engines.namespaces.wire import (
    JailMessage,
    JailOp,
    KeeperOp,
    KeeperRequest,
    SpawnRequest,
    Step,
    StepReply,
)
from atoll.errors import AtollError, InvalidRequest, Unavailable, Unsupported

_SECONDS = 10.0


class ZygoteEnded(Unavailable):
    """A zygote died under a request; the next one gets a new zygote."""


class Keeper:
    """The process that keeps what privilege there is; it ends with this one."""

    def __init__(self, program: Path, *, rootless: bool) -> None:
        self._lock = threading.Lock()
        ours, theirs = channel.socket_pair()
        ours.settimeout(_SECONDS)
        self._channel = ours
        try:
            with theirs:
                self._process = _start(program, theirs, rootless=rootless)
        except BaseException:
            ours.close()
            raise
        try:
            _check(channel.receive_only(ours, StepReply))
        except BaseException:
            self.close()
            raise

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
            if number in (2, 20, 40):
                raise InvalidRequest(
                    f"mount source {path!r} is not a directory reached without links", path=path
                ) from error
            if number == 22:
                raise Unsupported(
                    f"the file system of {path!r} cannot be shown under another owner;"
                    " put the directory on ext4, xfs or btrfs",
                    path=path,
                ) from error
            raise

    def sweep_at_end(self, path: Path) -> None:
        """Have the cgroup directories below `path` removed when this process is gone."""
        self._ask(KeeperRequest(op=KeeperOp.SWEEP, path=os.fsencode(path)), [])

    def close(self) -> None:
        """End every jail; returns when all processes are gone. Safe to call twice."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _ask(self, request: KeeperRequest, fds: Sequence[int]) -> tuple[StepReply, list[int]]:
        with self._lock:
            try:
                channel.send(self._channel, request, fds)
                reply, passed = channel.receive(self._channel, StepReply)
            except OSError as error:
                raise Unavailable(
                    f"the keeper does not answer: {error.strerror}; open the engine anew"
                ) from error
        return _check(reply), passed


@dataclass(frozen=True, slots=True)
class ZygoteAge:
    """When a zygote is replaced: what it shares with all its copies (addresses, hash seeds) does not last."""

    most_spawns: int = 10_000
    most_seconds: float = 3600.0


class Jail:
    """A jail and, in it, the zygote that makes sandboxes; one that died or is old is replaced."""

    def __init__(
        self, control: socket.socket, pid: int, template: Template, age: ZygoteAge
    ) -> None:
        control.settimeout(_SECONDS)
        self.pid = pid
        self.template = template
        self._control = control
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._age = age
        self._zygote: socket.socket | None = None
        self._born = 0.0
        self._spawns = 0
        self._renewing = False
        self._filter = -1

    def load_filter(self, program: bytes) -> None:
        """Give the jail the system-call filter that all its sandboxes get."""
        self._filter = channel.sealed_memory("filter", program)

    def spawn(self, request: SpawnRequest, fds: Sequence[int]) -> PendingSpawn:
        """Ask for a sandbox. The zygote serves one at a time: finish or abandon what is returned."""
        self._lock.acquire()
        try:
            zygote = self._live_zygote()
            try:
                channel.send(zygote, request, fds)
            except (BrokenPipeError, ConnectionResetError):
                self._drop_zygote()
                zygote = self._live_zygote()
                channel.send(zygote, request, fds)
            self._spawns += 1
            return PendingSpawn(self, zygote)
        except OSError as error:
            self._drop_zygote()
            self._lock.release()
            raise Unavailable(
                f"no zygote could be started: {error.strerror or error}; try again"
            ) from error
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Let go of the jail; it ends with its control socket."""
        with self._lock, self._asking:
            self._drop_zygote()
            self._control.close()
            if self._filter >= 0:
                os.close(self._filter)
                self._filter = -1

    def finished(self, *, broken: bool) -> None:
        """Free the zygote for the next spawn."""
        if broken:
            self._drop_zygote()
        elif self._is_old() and not self._renewing:
            self._renewing = True
            threading.Thread(target=self._renew, name="atoll-zygote", daemon=True).start()
        self._lock.release()

    def _is_old(self) -> bool:
        age = time.monotonic() - self._born
        return self._spawns >= self._age.most_spawns or age >= self._age.most_seconds

    def _renew(self) -> None:
        """Replace the zygote without anybody waiting: the old one serves until the new one is warm."""
        try:
            fresh = self._start_zygote()
        except (OSError, AtollError):
            self._renewing = False  # the next spawn tries again
            return
        with self._lock:
            if self._control.fileno() < 0:
                fresh.close()
                return
            self._drop_zygote()
            self._adopt(fresh)
            self._renewing = False

    def _live_zygote(self) -> socket.socket:
        if self._zygote is not None and not _has_ended(self._zygote):
            return self._zygote
        self._drop_zygote()
        fresh = self._start_zygote()
        self._adopt(fresh)
        return fresh

    def _adopt(self, zygote: socket.socket) -> None:
        self._zygote, self._born, self._spawns = zygote, time.monotonic(), 0

    def _start_zygote(self) -> socket.socket:
        ours, theirs = channel.socket_pair()
        ours.settimeout(_SECONDS)
        try:
            with self._asking:
                with theirs:
                    self._ask_for_zygote(theirs)
                self._await_zygote()
            _check(channel.receive_only(ours, StepReply))
        except BaseException:
            ours.close()
            raise
        return ours

    def _ask_for_zygote(self, theirs: socket.socket) -> None:
        request = JailMessage(op=JailOp.ZYGOTE, interpreter=self.template.interpreter)
        try:
            channel.send(self._control, request, [theirs.fileno(), self._filter])
        except ConnectionError as error:
            raise Unavailable("the jail ended; open the engine anew") from error

    def _await_zygote(self) -> None:
        while True:
            message = channel.receive_only(self._control, JailMessage)
            if message is None:
                raise Unavailable("the jail ended; open the engine anew")
            if message.op == JailOp.ZYGOTE:
                _check(StepReply(step=Step.ZYGOTE_START, error=max(0, -message.pid)))
                return

    def _drop_zygote(self) -> None:
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


class PendingSpawn:
    """A spawn under way."""

    def __init__(self, jail: Jail, zygote: socket.socket) -> None:
        self._jail = jail
        self._zygote = zygote
        self._open = True

    def finish(self) -> None:
        """Wait for the zygote's word that the sandbox is set up; raise `Unavailable` naming the step."""
        broken = True
        try:
            reply = channel.receive_only(self._zygote, StepReply)
            broken = reply is None
        except OSError as error:
            raise Unavailable(f"the zygote does not answer: {error.strerror}; try again") from error
        finally:
            self._end(broken=broken)
        if reply is None:
            raise ZygoteEnded("the zygote ended while it made a sandbox; try again")
        _check(reply)

    def abandon(self) -> None:
        """Give up; the zygote is replaced if it does not answer any more."""
        if not self._open:
            return
        broken = True
        try:
            broken = channel.receive_only(self._zygote, StepReply) is None
        except OSError:
            broken = True
        finally:
            self._end(broken=broken)

    def _end(self, *, broken: bool) -> None:
        if self._open:
            self._open = False
            self._jail.finished(broken=broken)


def _start(program: Path, control: socket.socket, *, rootless: bool) -> subprocess.Popen[bytes]:
    mode = "user" if rootless else "root"
    try:
        return subprocess.Popen(
            [program, str(os.getpid()), mode, str(control.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            pass_fds=(control.fileno(),),
        )
    except OSError as error:
        raise Unavailable(
            f"the keeper program {program} cannot be run: {error.strerror}; install the package again"
        ) from error


def _check(reply: StepReply | None) -> StepReply:
    if reply is None:
        raise Unavailable(
            "set-up ended without an answer; `atoll doctor` shows what this machine lacks"
        )
    if reply.error:
        step = Step(reply.step).name.lower()
        raise Unavailable(
            f"set-up step {step} failed: {os.strerror(reply.error)}; `atoll doctor` shows what this machine lacks",
            step=step,
            errno=reply.error,
        )
    return reply


def _has_ended(zygote: socket.socket) -> bool:
    poll = select.poll()
    poll.register(zygote, select.POLLIN)
    return bool(poll.poll(0))
