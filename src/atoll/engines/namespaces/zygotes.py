"""Jails and their zygotes, seen from the host.

All calls block for a millisecond or so and are made from worker threads.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from atoll.engines.namespaces import channel
from atoll.engines.namespaces.mounts import Template
from atoll.engines.namespaces.wire import (
    VERSION,
    JailMessage,
    JailOp,
    SpawnFlag,
    SpawnRequest,
    Step,
    StepReply,
)
from atoll.errors import AtollError, Unavailable

_SECONDS = 10.0
# An interpreter that is warmed takes seconds of a processor, which a busy machine may have few of.
_START_SECONDS = 60.0
_MOST_ZYGOTES = 8


class ZygoteEnded(Unavailable):
    """A zygote died under a request; the next one gets a new zygote."""


@dataclass(frozen=True, slots=True)
class ZygoteAge:
    """When a zygote is replaced: what it shares with all its copies (addresses, hash seeds) does not last."""

    most_spawns: int = 10_000
    most_seconds: float = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class Zygote:
    """One that serves, one request at a time; `generation` tells which were copied from the same one."""

    channel: socket.socket
    generation: int


class Jail:
    """A jail and, in it, the zygotes that make sandboxes.

    One is warmed. Where several are needed at the same time it is split into copies, which is done in a millisecond.
    All are replaced together when they are old; one that died is replaced when it is missed.
    """

    def __init__(
        self, control: socket.socket, pid: int, template: Template, age: ZygoteAge
    ) -> None:
        control.settimeout(_SECONDS)
        self.pid = pid
        self.template = template
        self._control = control
        self._asking = threading.Lock()
        self._changed = threading.Condition()
        self._most = min(_MOST_ZYGOTES, len(os.sched_getaffinity(0)) + 1)
        self._age = age
        self._generation = 0
        self._free: list[Zygote] = []
        self._count = 0
        self._missed = 0  # calls that wait for one
        self._starting = False
        self._renewing = False
        self._born = 0.0
        self._spawns = 0
        self._filter = -1

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, and all its sandboxes with it."""
        if self._control.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return any(events & select.POLLHUP for _fd, events in poll.poll(0))

    def fileno(self) -> int:
        """Its control socket, with which it ends."""
        return self._control.fileno()

    def load_filter(self, program: bytes) -> None:
        """Give the jail the system-call filter that all its sandboxes get."""
        self._filter = channel.sealed_memory("filter", program)

    def spawn(self, request: SpawnRequest, fds: Sequence[int]) -> PendingSpawn:
        """Ask for a sandbox; finish or abandon what is returned."""
        try:
            return self._try_spawn(request, fds)
        except (BrokenPipeError, ConnectionResetError):
            # It died since it was looked at; the next one is looked at, too.
            return self._try_spawn(request, fds)

    def _try_spawn(self, request: SpawnRequest, fds: Sequence[int]) -> PendingSpawn:
        try:
            zygote = self._take()
        except OSError as error:
            raise Unavailable(
                f"no zygote could be started: {error.strerror or error}; try again"
            ) from error
        try:
            channel.send(zygote.channel, request, fds)
        except BaseException:
            self._give_up(zygote)
            raise
        return PendingSpawn(self, zygote)

    def close(self) -> None:
        """Let go of the jail; it ends with its control socket."""
        with self._asking, self._changed:
            self._generation += 1
            self._drop_free()
            self._control.close()
            # Whoever waits for a zygote of this jail would wait for ever.
            self._changed.notify_all()
            if self._filter >= 0:
                os.close(self._filter)
                self._filter = -1

    def finished(self, zygote: Zygote, *, broken: bool) -> None:
        """Take a zygote back."""
        if broken:
            self._give_up(zygote)
            return
        copy = self._split(zygote) if self._is_crowded() else None
        with self._changed:
            self._spawns += 1
            if self._is_old() and not self._renewing:
                self._renewing = True
                threading.Thread(target=self._renew, name="atoll-zygote", daemon=True).start()
            for each in (zygote, copy):
                if each is not None:
                    self._put(each)
            self._changed.notify_all()

    # --- taking and giving back ------------------------------------------------------------------------------

    def _take(self) -> Zygote:
        with self._changed:
            while True:
                if self._control.fileno() < 0:
                    raise Unavailable("the jail ended while a sandbox waited for it; try again")
                while self._free:
                    zygote = self._free.pop()
                    if not _has_ended(zygote.channel):
                        return zygote
                    self._forget(zygote)
                if not self._count and not self._starting:
                    self._starting = True
                    break
                self._missed += 1
                self._changed.wait()
                self._missed -= 1
        return self._take_first()

    def _take_first(self) -> Zygote:
        """Start a zygote because there is none."""
        fresh = None
        try:
            fresh = self._start_zygote()
        finally:
            with self._changed:
                self._starting = False
                zygote = None if fresh is None else self._adopt(fresh)
                self._changed.notify_all()
        assert zygote is not None
        return zygote

    def _is_crowded(self) -> bool:
        return bool(self._missed) and self._count < self._most

    def _put(self, zygote: Zygote) -> None:
        if zygote.generation == self._generation:
            self._free.append(zygote)
        else:
            zygote.channel.close()  # it was replaced meanwhile

    def _give_up(self, zygote: Zygote) -> None:
        with self._changed:
            self._forget(zygote)
            self._changed.notify_all()

    def _forget(self, zygote: Zygote) -> None:
        zygote.channel.close()
        if zygote.generation == self._generation:
            self._count -= 1

    def _drop_free(self) -> None:
        while self._free:
            self._forget(self._free.pop())

    def _adopt(self, fresh: socket.socket) -> Zygote:
        """Begin a generation."""
        self._generation += 1
        self._count, self._born, self._spawns = 1, time.monotonic(), 0
        return Zygote(fresh, self._generation)

    # --- renewing ----------------------------------------------------------------------------------------------

    def _is_old(self) -> bool:
        age = time.monotonic() - self._born
        return self._spawns >= self._age.most_spawns or age >= self._age.most_seconds

    def _renew(self) -> None:
        """Replace all zygotes without anybody waiting: the old ones serve until the new one is warm."""
        try:
            fresh = self._start_zygote()
        except (OSError, AtollError):
            self._renewing = False  # the next spawn tries again
            return
        with self._changed:
            if self._control.fileno() < 0:
                fresh.close()
                return
            self._drop_free()
            self._free.append(self._adopt(fresh))
            self._renewing = False
            self._changed.notify_all()

    # --- starting ----------------------------------------------------------------------------------------------

    def _start_zygote(self) -> socket.socket:
        ours, theirs = channel.socket_pair()
        ours.settimeout(_START_SECONDS)
        try:
            with self._asking:
                with theirs:
                    self._ask_for_zygote(theirs)
                self._await_zygote()
            check_reply(channel.receive_only(ours, StepReply))
            ours.settimeout(_SECONDS)
        except BaseException:
            ours.close()
            raise
        return ours

    def _split(self, zygote: Zygote) -> Zygote | None:
        """Return a copy of a zygote, or None if it could not be made; one is enough to go on."""
        with self._changed:
            self._count += 1
        ours, theirs = channel.socket_pair()
        ours.settimeout(_SECONDS)
        copy = Zygote(ours, zygote.generation)
        try:
            request = SpawnRequest(version=VERSION, flags=SpawnFlag.SPLIT)
            with theirs:
                channel.send(zygote.channel, request, [theirs.fileno()])
            check_reply(channel.receive_only(zygote.channel, StepReply))
        except (OSError, Unavailable):
            self._give_up(copy)
            return None
        return copy

    def _ask_for_zygote(self, theirs: socket.socket) -> None:
        request = JailMessage(op=JailOp.ZYGOTE, interpreter=self.template.language is not None)
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
                check_reply(StepReply(step=Step.ZYGOTE_START, error=max(0, -message.pid)))
                return


class PendingSpawn:
    """A spawn under way."""

    def __init__(self, jail: Jail, zygote: Zygote) -> None:
        self._jail = jail
        self._zygote = zygote
        self._open = True

    def finish(self) -> None:
        """Wait for the zygote's word that the sandbox is set up; raise `Unavailable` naming the step."""
        broken = True
        try:
            reply = channel.receive_only(self._zygote.channel, StepReply)
            broken = reply is None
        except OSError as error:
            raise Unavailable(f"the zygote does not answer: {error.strerror}; try again") from error
        finally:
            self._end(broken=broken)
        if reply is None:
            raise ZygoteEnded("the zygote ended while it made a sandbox; try again")
        check_reply(reply)

    def abandon(self) -> None:
        """Give up; the zygote is replaced if it does not answer any more."""
        if not self._open:
            return
        broken = True
        try:
            broken = channel.receive_only(self._zygote.channel, StepReply) is None
        except OSError:
            broken = True
        finally:
            self._end(broken=broken)

    def _end(self, *, broken: bool) -> None:
        if self._open:
            self._open = False
            self._jail.finished(self._zygote, broken=broken)


def check_reply(reply: StepReply | None) -> StepReply:
    """Return how a request went, or raise `Unavailable` naming the step that failed."""
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
