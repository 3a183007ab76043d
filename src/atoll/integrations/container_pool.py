"""Containers that are used again: taken for a command, made as new when they come back, destroyed when nobody wants them.

A container is given again only to whoever asks this pool for exactly the same one, and only if it could be made as new. A pool is
of one program and one owner; no other ever gets a container of it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from atoll import AsyncSandbox, ContainerOptions
from atoll.errors import AtollError, Conflict, InvalidRequest
from atoll.integrations.shapes import parse_memory, read_fields
from atoll.model.network import Network

MAX_SIZE = 5
IDLE_SECONDS = 60.0
PIDS = 100
# Only for a program that was killed and left them to a server.
_LIFETIME = "1d"
_NETWORKS = ("none", "bridge", "host")


@dataclass(frozen=True, slots=True)
class Place:
    """Where containers are made: the engine, and its address or that of a server which has it."""

    engine: str = "docker"
    url: str | None = None
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, docker: Mapping[str, Any] | str | None, engine: str = "docker") -> Place:
        """Return where an engine is: its usual place, an address, or `socketPath`, or `host` and `port`."""
        if docker is None:
            return cls(engine)
        if isinstance(docker, str):
            return cls(engine, f"{engine}+{docker}")
        options = read_fields("docker", docker, ("socket_path", "host", "port"))
        if "socket_path" in options:
            return cls(engine, f"{engine}+unix://{options['socket_path']}")
        if "host" in options:
            return cls(engine, f"{engine}+tcp://{options['host']}:{options.get('port', 2375)}")
        return cls(engine)


@dataclass(eq=False, slots=True)
class PooledContainer:
    """A container that somebody has acquired."""

    image: str
    sandbox: AsyncSandbox
    is_tracked: bool  # else it is used once
    _key: Hashable
    _idle_since: float = 0.0

    @property
    def id(self) -> str:
        """The id of its sandbox."""
        return self.sandbox.id


class ContainerPool:
    """Keeps containers for the next command; leaving its context destroys them all.

    `max_size` are kept, busy or not; one more is made all the same, and used once.
    """

    def __init__(
        self,
        docker: Place | Mapping[str, Any] | str | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        max_size: int = MAX_SIZE,
        idle_timeout: float = IDLE_SECONDS,
    ) -> None:
        """Say where containers are, see `Place.of`, and how many are kept for how many seconds.

        `options` says the same as `{"maxSize": 5, "idleTimeoutMs": 60_000}`.
        """
        given = read_fields("pool", options or {}, ("max_size", "idle_timeout_ms"))
        self._place = docker if isinstance(docker, Place) else Place.of(docker)
        self._max_size = given.get("max_size", max_size)
        self._idle_seconds = given.get("idle_timeout_ms", idle_timeout * 1000) / 1000
        if type(self._max_size) is not int or self._max_size < 0 or not self._idle_seconds > 0:
            raise InvalidRequest("a pool's size has to be 0 or more, its idle timeout more than 0")
        self._idle: list[PooledContainer] = []
        self._busy: set[PooledContainer] = set()
        self._making = 0  # of those that will be kept
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.destroy_all()

    @property
    def size(self) -> int:
        """How many containers are kept, busy or not."""
        return len(self._idle) + sum(each.is_tracked for each in self._busy) + self._making

    async def acquire(self, image: str, config: Mapping[str, Any] | None = None) -> PooledContainer:
        """Return a container of an image that nobody else has: one that is free and the same in every respect, or a new one.

        `config` has `memory` (bytes or text), `cpus`, `cpuShares`, `pidsLimit`, `networkMode`, `allowedHosts`, `dns`, `mounts`, `env` and
        `user`, in this or in Python's spelling. Errors as `Sandbox.create`.
        """
        wish = _Wish.of(image, config or {})
        while (found := self._take_idle(wish.key)) is not None:
            if await _is_alive(found):
                self._busy.add(found)
                return found
            await _destroy(found)
        made = await self._make(wish)
        self._busy.add(made)
        self._start_sweeping()
        return made

    async def release(
        self,
        container: PooledContainer,
        options: Mapping[str, Any] | None = None,
        *,
        corrupted: bool = False,
    ) -> None:
        """Give a container back; one that is corrupted, one too many, or cannot be made as new is destroyed.

        Raises:
            Conflict: it is none that was acquired here and not given back yet.
        """
        corrupted = read_fields("release", options or {}, ("corrupted",)).get(
            "corrupted", corrupted
        )
        if container not in self._busy:
            raise Conflict(
                f"container {container.id} was not acquired from this pool, or was given back"
            )
        is_clean = container.is_tracked and not corrupted and await _clean(container)
        self._busy.discard(container)
        # All may have been destroyed while it was cleaned.
        if is_clean and self._sweeper is not None:
            container._idle_since = time.monotonic()
            self._idle.append(container)
        else:
            await _destroy(container)

    async def destroy_all(self) -> None:
        """Destroy every container, also those that are in use; the pool can be used again."""
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await sweeper
        containers = [*self._idle, *self._busy]
        self._idle, self._busy = [], set()
        outcomes = await asyncio.gather(*map(_destroy, containers), return_exceptions=True)
        for each in outcomes:
            if isinstance(each, BaseException):
                raise each

    def _take_idle(self, key: Hashable) -> PooledContainer | None:
        found = next((each for each in self._idle if each._key == key), None)
        if found is not None:
            self._idle.remove(found)
        return found

    async def _make(self, wish: _Wish) -> PooledContainer:
        is_tracked = self.size < self._max_size
        self._making += is_tracked
        try:
            sandbox = await AsyncSandbox.create(
                "base",
                engine=self._place.engine,
                url=self._place.url,
                token=self._place.token,
                lifetime=_LIFETIME,
                idle=_LIFETIME,
                **wish.arguments,
            )
        finally:
            self._making -= is_tracked
        return PooledContainer(wish.image, sandbox, is_tracked, wish.key)

    def _start_sweeping(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep_forever())

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._idle_seconds / 2)
            await self.sweep()

    async def sweep(self) -> int:
        """Destroy what has been free for longer than the idle timeout; return how many."""
        latest = time.monotonic() - self._idle_seconds
        late = [each for each in self._idle if each._idle_since <= latest]
        self._idle = [each for each in self._idle if each not in late]
        for each in late:
            # One that cannot be removed now its engine removes later.
            with suppress(AtollError):
                await _destroy(each)
        return len(late)


async def _is_alive(container: PooledContainer) -> bool:
    try:
        return not (await container.sandbox.info()).state.is_over
    except AtollError:
        return False


async def _clean(container: PooledContainer) -> bool:
    try:
        await container.sandbox.clean()
    except AtollError:
        return False
    return True


async def _destroy(container: PooledContainer) -> None:
    await container.sandbox.destroy()


@dataclass(frozen=True, slots=True)
class _Wish:
    """The container that is wanted, as the SDK is asked for it; `key` holds all of it."""

    image: str
    key: Hashable
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, image: str, config: Mapping[str, Any]) -> _Wish:
        given = read_fields("config", config, _FIELDS)
        mounts = [_mount(each) for each in given.get("mounts", ())]
        limits = {
            "memory": None if "memory" not in given else parse_memory(given["memory"]),
            "cpus": given.get("cpus"),
            "processes": given.get("pids_limit", PIDS),
        }
        arguments = {
            "limits": {name: value for name, value in limits.items() if value is not None},
            "envs": dict(given.get("env", {})),
            "mounts": mounts,
            **_network(given),
        }
        options = {name: given[name] for name in ("user", "cpu_shares") if name in given}
        network = arguments.pop("engine_network")
        arguments["container"] = ContainerOptions(image=image, network=network, **options)
        return cls(image, json.dumps([image, given], sort_keys=True, default=str), arguments)


_FIELDS = (
    "memory", "cpus", "cpu_shares", "pids_limit", "network_mode", "allowed_hosts", "dns", "mounts", "env", "user",
)  # fmt: skip


def _mount(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return read_fields("mount", given, ("source", "target", "read_only"))


def _network(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the sandbox may reach, and the engine's own network.

    Hosts that are named are reached by way of Atoll's proxy, for which the container has no network at all.
    """
    mode, hosts, dns = (
        given.get("network_mode", "none"),
        given.get("allowed_hosts"),
        given.get("dns"),
    )
    if mode not in _NETWORKS:
        raise InvalidRequest(f"network mode {str(mode)[:40]!r} is none of {', '.join(_NETWORKS)}")
    if hosts is None:
        if dns:
            raise InvalidRequest(
                "dns goes with allowedHosts, which names are looked up for; name those"
            )
        return {"engine_network": mode}
    if mode != "bridge":
        raise InvalidRequest(f"allowedHosts goes with network mode 'bridge', not {mode!r}")
    return {"engine_network": "none", "network": Network.parse(list(hosts), dns=list(dns or ()))}
