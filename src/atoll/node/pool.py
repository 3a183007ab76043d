"""Sandboxes made ahead, of every engine: each is given once, to whom it was made for, and replaced in the background.

A shelf holds those of one configuration, for one owner, or for everybody if the operator keeps it. What is on it was never
used. It is given only to a request for exactly that, and only while its template is still the one that it was made from:
whoever takes a sandbox gets what he would have got had it been made for him at that moment, or he gets none.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import anyio

from atoll.errors import AtollError, InvalidRequest, LimitExceeded
from atoll.model.container import ContainerOptions
from atoll.model.ids import SandboxId, new_sandbox_id
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.model.sizes import MIB
from atoll.node import clock
from atoll.node.counters import Counters
from atoll.node.hosted import HostedSandbox
from atoll.node.hosting import Hosting
from atoll.node.template_versions import TemplateVersions

MOST_READY = 1000
# Whoever has just got a sandbox works with it now; making the next one can wait.
_REST_SECONDS = 0.02
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 1.0, 60.0
# The pool gives way while this much is left before anybody would be refused; it comes back only when there is more,
# for otherwise it would be made and thrown away in turn.
_SHED_BYTES, _REFILL_BYTES = 128 * MIB, 384 * MIB

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolRules:
    """What those may keep ready who are not the operator."""

    most_per_owner: int = MOST_READY
    most_idle_seconds: float | None = None  # how long it waits for somebody who does not come


@dataclass(frozen=True, slots=True)
class ShelfInfo:
    """Facts about the sandboxes of one configuration at one moment."""

    engine: str
    template: str
    image: str | None
    wanted: int
    ready: int


@dataclass(frozen=True, slots=True)
class _Ready:
    """A sandbox that waits, and the version of its template."""

    hosted: HostedSandbox
    version: str


@dataclass(slots=True)
class _Shelf:
    """The sandboxes of one configuration."""

    spec: SandboxSpec
    engine: str
    owner: str | None  # None: everybody's
    wanted: int = 0
    idle_seconds: float | None = None
    ready: deque[_Ready] = field(default_factory=deque)
    is_filling: bool = False
    is_asleep: bool = False  # nobody came for so long that nothing is kept until somebody does
    last_asked: float = field(default_factory=clock.now)

    @property
    def missing(self) -> int:
        """How many should be there and are not."""
        return 0 if self.is_asleep else self.wanted - len(self.ready)


class Pool:
    """Ready sandboxes by their whole configuration. `take` may be called in any thread."""

    def __init__(
        self,
        hosting: Hosting,
        wake: Callable[..., object],
        has_room: Callable[[int], bool] = lambda _spare_bytes: True,
        *,
        versions: TemplateVersions | None = None,
        has_places: Callable[[str | None, int, int], bool] = lambda _owner, _his, _all: True,
        counters: Counters | None = None,
    ) -> None:
        """Keep sandboxes as long as there is room for them.

        `has_room` says whether there is memory for one more, and so much to spare; `has_places` whether so many ready ones
        of an owner's, and of everybody's, do not take places that living ones could have.
        """
        self._hosting = hosting
        self._tasks = hosting.tasks
        self._wake = wake  # runs a function in the node's event loop
        self._has_room = has_room
        self._has_places = has_places
        self._versions = versions or TemplateVersions(hosting.engines)
        self._counters = counters or Counters()
        self._shelves: dict[Hashable, _Shelf] = {}
        self._guard = threading.Lock()
        self._closed = False

    # --- keeping ---------------------------------------------------------------------------------------------

    async def keep(
        self,
        spec: SandboxSpec,
        count: int,
        *,
        owner: str | None = None,
        idle_seconds: float | None = None,
    ) -> None:
        """Have `count` sandboxes of this configuration ready from now on; returns when they are.

        They are for `owner` alone, for everybody without one. Those that nobody asked for in `idle_seconds` are destroyed,
        and made again when somebody does.

        Raises:
            InvalidRequest: not a number that is possible, or a sandbox that is not.
            LimitExceeded: the owner, or the node, may not have so many.
        """
        shelf = self.want(spec, count, owner=owner, idle_seconds=idle_seconds)
        try:
            while shelf.missing > 0:
                self._check_places(shelf)
                shelf.ready.append(await self._make(shelf))
        except BaseException:
            # Whoever asked knows that there are fewer; nobody would be told of what fails later.
            self.want(spec, len(shelf.ready), owner=owner, idle_seconds=idle_seconds)
            raise
        await self._trim(shelf)

    def want(
        self,
        spec: SandboxSpec,
        count: int,
        *,
        owner: str | None = None,
        idle_seconds: float | None = None,
    ) -> _Shelf:
        """Say how many are to be ready, as `keep` does; `refill` makes them."""
        if type(count) is not int or not 0 <= count <= MOST_READY:
            raise InvalidRequest(
                f"{count!r} sandboxes cannot be kept ready; it has to be 0 to {MOST_READY}"
            )
        _check_poolable(spec)
        engine = self._hosting.engines.find(spec.engine).name
        key = self._key(spec, owner)
        shelf = self._shelves.get(key) or _Shelf(spec, engine, owner)
        shelf.wanted, shelf.idle_seconds = count, idle_seconds
        shelf.last_asked, shelf.is_asleep = clock.now(), False
        if count:
            self._shelves[key] = shelf
        else:
            self._shelves.pop(key, None)
        return shelf

    def refill(self) -> None:
        """Begin to make all that is missing, in the background."""
        for shelf in list(self._shelves.values()):
            self._refill(shelf)

    def _check_places(self, shelf: _Shelf) -> None:
        if not self._may_grow(shelf):
            raise LimitExceeded(
                f"{len(shelf.ready)} of {shelf.wanted} sandboxes are ready; more would take all places that the quota"
                " has for living ones; keep fewer, or destroy some",
                ready=len(shelf.ready),
            )

    def _may_grow(self, shelf: _Shelf) -> bool:
        return self._has_places(shelf.owner, self.count(shelf.owner) + 1, len(self.ready()) + 1)

    # --- taking ----------------------------------------------------------------------------------------------

    def has(self, spec: SandboxSpec, owner: str) -> bool:
        """Whether sandboxes of this configuration are kept for somebody, ready or not; costs nothing where none are."""
        return bool(self._shelves) and bool(self._find(spec, owner))

    def take(self, spec: SandboxSpec, owner: str, version: str) -> HostedSandbox | None:
        """Return a ready sandbox under the id that was asked for, or None if there is none of this version of its template."""
        found = None
        for shelf in self._find(spec, owner):
            shelf.last_asked, shelf.is_asleep = clock.now(), False
            found = found or self._take_good(shelf, spec.id, version)
            self._refill(shelf)
        engine = self._hosting.engines.find(spec.engine).name
        (self._counters.pool_misses if found is None else self._counters.pool_hits).add(engine)
        return found

    def _find(self, spec: SandboxSpec, owner: str) -> Sequence[_Shelf]:
        """Return where one may be found, the owner's own first."""
        engine, wanted = self._hosting.engines.find(spec.engine).name, configuration(spec)
        found = (self._shelves.get((each, engine, wanted)) for each in (owner, None))
        return [shelf for shelf in found if shelf is not None]

    def _key(self, spec: SandboxSpec, owner: str | None) -> Hashable:
        return owner, self._hosting.engines.find(spec.engine).name, configuration(spec)

    def _take_good(
        self, shelf: _Shelf, sandbox_id: SandboxId, version: str
    ) -> HostedSandbox | None:
        while True:
            try:
                ready = shelf.ready.popleft()
            except IndexError:
                return None
            if not _is_sound(ready, shelf):
                self._discard(shelf, ready, "corrupted")
            elif ready.version != version:
                self._discard(shelf, ready, "outdated")
            else:
                ready.hosted.rename(sandbox_id)
                return ready.hosted

    # --- looking after them ----------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Destroy what has ended, what nobody came for, and what others need the room for."""
        for shelf in list(self._shelves.values()):
            await self._remove_unsound(shelf)
            if shelf.idle_seconds is not None and _waited(shelf) >= shelf.idle_seconds:
                shelf.is_asleep = True
                await self._empty(shelf, "idle")
            while shelf.ready and not self._keeps_within(shelf):
                await self._destroy(shelf, shelf.ready.pop(), "quota")
                self._refill(shelf)
        await self.shed()

    def _keeps_within(self, shelf: _Shelf) -> bool:
        return self._has_places(shelf.owner, self.count(shelf.owner), len(self.ready()))

    async def _remove_unsound(self, shelf: _Shelf) -> None:
        for ready in list(shelf.ready):
            if not _is_sound(ready, shelf):
                try:
                    shelf.ready.remove(ready)
                except ValueError:
                    continue  # somebody has just taken it, and saw the same
                await self._destroy(shelf, ready, "corrupted")
                self._refill(shelf)

    async def shed(self) -> int:
        """Give up ready sandboxes while memory is short; return how many. They are made anew when it no longer is."""
        count = 0
        for shelf in list(self._shelves.values()):
            while shelf.ready and not self._has_room(_SHED_BYTES):
                await self._destroy(shelf, shelf.ready.pop(), "memory")
                count += 1
                self._refill(shelf)
        if count:
            _log.warning("pool.shed", extra={"sandboxes": count})
        return count

    async def close(self) -> None:
        """Make no more, and destroy those that nobody has taken."""
        self._closed = True
        for shelf in list(self._shelves.values()):
            shelf.wanted = 0
            await self._empty(shelf, "shutdown")

    def ready(self) -> Sequence[HostedSandbox]:
        """Return the sandboxes that are ready."""
        shelves = list(self._shelves.values())
        return [ready.hosted for shelf in shelves for ready in list(shelf.ready)]

    def count(self, owner: str | None) -> int:
        """Return how many are ready for an owner, or for everybody."""
        return sum(len(each.ready) for each in list(self._shelves.values()) if each.owner == owner)

    def wanted(self, owner: str | None, besides: SandboxSpec | None = None) -> int:
        """Return how many are to be ready for an owner, but for those of one configuration."""
        left_out = None if besides is None else self._key(besides, owner)
        return sum(
            shelf.wanted
            for key, shelf in list(self._shelves.items())
            if shelf.owner == owner and key != left_out
        )

    def depths(self) -> Mapping[str, int]:
        """Return how many are ready, by engine."""
        depths = dict.fromkeys((engine.name for engine in self._hosting.engines.all), 0)
        for shelf in list(self._shelves.values()):
            depths[shelf.engine] += len(shelf.ready)
        return depths

    def list(self, owner: str | None) -> Sequence[ShelfInfo]:
        """Return facts about what is kept ready for an owner, or for everybody."""
        return [
            ShelfInfo(
                shelf.engine,
                shelf.spec.template,
                None if shelf.spec.container is None else shelf.spec.container.image,
                shelf.wanted,
                len(shelf.ready),
            )
            for shelf in list(self._shelves.values())
            if shelf.owner == owner
        ]

    async def _empty(self, shelf: _Shelf, reason: str) -> None:
        while shelf.ready:
            await self._destroy(shelf, shelf.ready.pop(), reason)

    def _discard(self, shelf: _Shelf, ready: _Ready, reason: str) -> None:
        self._wake(self._tasks.start_soon, self._destroy, shelf, ready, reason)

    async def _destroy(self, shelf: _Shelf, ready: _Ready, reason: str) -> None:
        self._counters.pool_destroyed.add(shelf.engine, reason)
        try:
            with anyio.CancelScope(shield=True):
                await ready.hosted.destroy()
        except AtollError as error:
            # Its engine has it on a list, and removes it later.
            _log.warning("pool.not_destroyed", extra={"reason": error.message})

    # --- making ----------------------------------------------------------------------------------------------

    def _refill(self, shelf: _Shelf) -> None:
        with self._guard:
            if shelf.is_filling or self._closed:
                return
            shelf.is_filling = True
        self._wake(self._tasks.start_soon, self._fill, shelf)

    async def _fill(self, shelf: _Shelf) -> None:
        pause = _RETRY_SECONDS
        try:
            await anyio.sleep(_REST_SECONDS)
            while shelf.missing > 0:
                if not self._has_room(_REFILL_BYTES) or not self._may_grow(shelf):
                    await anyio.sleep(_RETRY_SECONDS)
                    continue
                try:
                    shelf.ready.append(await self._make(shelf))
                    pause = _RETRY_SECONDS
                except AtollError as error:
                    if shelf.missing <= 0:
                        break  # nobody wants it any more, and its engine may be closing
                    # Whoever needs a sandbox meanwhile makes one, and is told of the reason.
                    _log.warning("pool.refill_failed", extra={"reason": error.message})
                    await anyio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_RETRY_SECONDS)
            await self._trim(shelf)
        finally:
            shelf.is_filling = False

    async def _trim(self, shelf: _Shelf) -> None:
        """Destroy what is too much: fewer are wanted meanwhile, or two have made the last one."""
        while len(shelf.ready) > shelf.wanted:
            await self._destroy(shelf, shelf.ready.pop(), "surplus")

    async def _make(self, shelf: _Shelf) -> _Ready:
        while True:
            version = await self._versions.find(shelf.spec)
            hosted = await self._hosting.open(replace(shelf.spec, id=new_sandbox_id()))
            ready = _Ready(hosted, version)
            try:
                kernel = hosted.live_kernel()
                if kernel is not None:
                    await kernel.rehearse()
                is_current = await self._versions.find(shelf.spec) == version
            except BaseException:
                await self._destroy(shelf, ready, "corrupted")
                raise
            if is_current:
                return ready
            # Its template was replaced meanwhile, and nobody can tell which of both it has.
            await self._destroy(shelf, ready, "outdated")


def configuration(spec: SandboxSpec) -> Hashable:
    """Return all that makes a sandbox what it is, but its id and the engine, which may go by no name."""
    return tuple(_hashable(getattr(spec, name)) for name in _CONFIGURATION)


# All fields that there are, so that a new one counts from its first day.
_CONFIGURATION = tuple(name for name in SandboxSpec.__slots__ if name not in ("id", "engine"))


def _hashable(value: object) -> Hashable:
    try:
        hash(value)
    except TypeError:
        pass
    else:
        assert isinstance(value, Hashable)
        return value
    if isinstance(value, ContainerOptions):
        return json.dumps(value.to_json(), sort_keys=True)
    return tuple(
        sorted(value.items()) if isinstance(value, Mapping) else cast(Iterable[object], value)
    )


def _check_poolable(spec: SandboxSpec) -> None:
    """Raise `InvalidRequest` for what cannot be made before it is known for whom and under which name."""
    if spec.network.has_listeners:
        raise InvalidRequest("sandboxes with a network cannot be kept ready; leave the network out")
    if spec.workspace is not None or spec.secrets:
        raise InvalidRequest(
            "sandboxes with a kept workspace or secrets cannot be kept ready; leave them out"
        )


def _is_sound(ready: _Ready, shelf: _Shelf) -> bool:
    hosted = ready.hosted
    return hosted.info.state is SandboxState.RUNNING and hosted.has_kernel(shelf.spec)


def _waited(shelf: _Shelf) -> float:
    return clock.now() - shelf.last_asked
