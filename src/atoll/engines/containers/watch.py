"""What happens to an engine and its containers while nobody asks: deaths, and an engine that hangs or is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiodocker

from atoll.engines.containers import labels
from atoll.engines.containers.client import EngineClient
from atoll.engines.containers.wall import remove_container, remove_volumes
from atoll.errors import AtollError, NotFound, all_of

_BEAT_SECONDS = 3.0
_AGAIN_SECONDS = 1.0
_LOOKS = 4


class Watch:
    """Follows an engine as long as it has sandboxes, or something is left to be removed."""

    def __init__(
        self,
        client: EngineClient,
        node: str,
        *,
        on_event: Callable[[str, str], None],
        on_silence: Callable[[], None],
    ) -> None:
        self._client = client
        self._node = node
        self._on_event = on_event
        self._on_silence = on_silence
        # How often each is still to be looked for.
        self._leftovers: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def leftovers(self) -> frozenset[str]:
        """Containers that could not be removed yet."""
        return frozenset(self._leftovers)

    def start(self) -> None:
        """Begin, if it has not begun yet."""
        if not self._tasks:
            for work in (self._beat, self._follow):
                self._tasks.add(asyncio.create_task(work()))

    async def stop(self) -> None:
        """End it."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def remove_later(self, name: str, *, may_come: bool = False) -> None:
        """Have a container of that name, and its volume, removed as soon as the engine can.

        One that `may_come` is looked for several times: an engine that hung may yet do what it was asked to.
        """
        self._leftovers[name] = _LOOKS if may_come else 1

    async def remove_leftovers(self) -> None:
        """Try each once; raises what the engine says of all that stay."""
        failures: list[AtollError] = []
        for name in sorted(self._leftovers):
            try:
                await self._remove(name)
            except AtollError as error:
                failures.append(error)
        if failures:
            raise all_of(failures)

    def spare(self, name: str) -> None:
        """Remove no container of that name any more: a new one is being made."""
        self._leftovers.pop(name, None)

    async def _remove(self, name: str) -> None:
        if name in self._leftovers and await self._is_ours(name):
            await remove_container(self._client, name)
            await remove_volumes(self._client, self._node, name)
        # Somebody else may have been at it meanwhile.
        left = self._leftovers.pop(name, 0) - 1
        if left > 0:
            self._leftovers[name] = left

    async def _is_ours(self, name: str) -> bool:
        """Whether this node made it, or it is gone; another node's may have the same name."""
        try:
            container = await self._client.ask(
                "find a container", lambda docker: docker.containers.get(name)
            )
        except NotFound:
            return True
        return bool(container["Config"]["Labels"].get(labels.NODE) == self._node)

    async def _beat(self) -> None:
        """Ask for a sign of life again and again: calls inside a sandbox do not notice that an engine hangs."""
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            # Once more: all that it has is lost then, and a machine may be busy for a moment.
            if not await self._client.is_alive() and not await self._client.is_alive():
                self._on_silence()
            elif self._leftovers:
                with suppress(AtollError):
                    await self.remove_leftovers()

    async def _follow(self) -> None:
        while True:
            with suppress(AtollError):
                await self._client.ask("tell events", self._listen, seconds=float("inf"))
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _listen(self, docker: aiodocker.Docker) -> None:
        subscriber = docker.events.subscribe(create_task=False)
        filters = {"type": ["container"], "label": [f"{labels.NODE}={self._node}"]}
        running = asyncio.ensure_future(docker.events.run(filters=json.dumps(filters)))
        try:
            while (event := await subscriber.get()) is not None:
                self._pass_on(event)
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _pass_on(self, event: dict[str, Any]) -> None:
        container = (event.get("Actor") or {}).get("ID") or event.get("id")
        action = event.get("Action") or event.get("status")
        if isinstance(container, str) and isinstance(action, str):
            self._on_event(container, action)
