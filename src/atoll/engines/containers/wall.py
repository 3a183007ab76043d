"""The container round a steward."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import aiodocker

from atoll.engines.containers import labels
from atoll.engines.containers.client import EngineClient
from atoll.engines.containers.counters import CgroupCounters, Counts
from atoll.engines.containers.workspace_volume import settle
from atoll.errors import AtollError, Conflict, NotFound, Unavailable, all_of
from atoll.model.process import EndReason, ProcessEnd
from atoll.model.sandbox import KeptWorkspace

_GONE_SECONDS = 0.05
_TRIES = 100
_FAILURES = 3
_QUICK_SECONDS = 1.0


class ContainerWall:
    """One container of an engine."""

    def __init__(
        self,
        client: EngineClient,
        container: aiodocker.containers.DockerContainer,
        name: str,
        *,
        volume: str | None,
        workspace: KeptWorkspace | None = None,
    ) -> None:
        self.id: str = container.id
        self.name = name
        self._volume = volume  # that goes with it
        self._workspace = workspace  # in that volume, if it outlives the container
        self._client = client
        self._container = container
        self._counters: CgroupCounters | None = None
        self._seen = Counts()
        self._told = Counts()
        # Called with the name of a container that could not be removed.
        self.on_leftover: Callable[[str], None] | None = None

    def watch(self, pid: int) -> None:
        """Count what its limits do, by the cgroup of its first process if that is on this machine."""
        self._counters = CgroupCounters.find(pid, self.id)
        self._seen = self._count()

    def note_out_of_memory(self) -> None:
        """Take note that the engine has told of a process that was killed for memory."""
        self._told = replace(self._told, out_of_memory=self._told.out_of_memory + 1)

    async def pause(self) -> None:
        """Stop every process in place."""
        await self._turn("pause a container", self._container.pause, "already paused")

    async def resume(self) -> None:
        """Let every process go on."""
        await self._turn("resume a container", self._container.unpause, "not paused")

    async def _turn(self, what: str, call: Callable[[], Awaitable[None]], already: str) -> None:
        try:
            await self._client.ask(what, lambda _docker: call())
        except AtollError as error:
            if already not in error.message:
                raise

    async def stop(self) -> None:
        """End every process, and keep the container with all that is in it."""
        try:
            await stop_container(self._client, self.id)
        except NotFound:
            pass  # somebody removed it, and with it all that ran; whoever resumes it sees to the rest
        await self._settle()

    async def remove(self) -> None:
        """End every process and remove everything; raises all that went wrong, in one error."""
        steps = [remove_container(self._client, self.id)]
        if self._volume is not None:
            steps.append(remove_volume(self._client, self._volume))
        failures = [error for step in steps if (error := await _failure(step)) is not None]
        if failures and self.on_leftover is not None:
            self.on_leftover(self.name)
        if not failures and (unsettled := await _failure(self._settle())) is not None:
            failures.append(unsettled)
        if failures:
            raise all_of(failures)

    async def _settle(self) -> None:
        if self._workspace is not None:
            await asyncio.to_thread(settle, self._workspace)

    def explain(self, end: ProcessEnd) -> ProcessEnd:
        """Tell deaths apart by what the limits have counted since the last one."""
        if end.exit_code == 0:
            return end
        now, seen = self._count(), self._seen
        self._seen = now
        killed = end.signal == signal.SIGKILL or end.exit_code == 128 + signal.SIGKILL
        if killed and now.out_of_memory > seen.out_of_memory and end.reason is not EndReason.KILLED:
            return replace(end, reason=EndReason.OUT_OF_MEMORY)
        if now.too_many_processes > seen.too_many_processes and end.reason is EndReason.EXITED:
            return replace(end, reason=EndReason.TOO_MANY_PROCESSES)
        return end

    def _count(self) -> Counts:
        return self._told if self._counters is None else self._counters.read()


async def _failure(step: Awaitable[None]) -> AtollError | None:
    try:
        await step
    except AtollError as error:
        return error
    return None


async def stop_container(client: EngineClient, container: str) -> None:
    """End everything in a container by id or name and keep it; one that does not run is fine.

    Returns when its mounts are let go of, too.

    Raises:
        NotFound: there is none.
        Unavailable: it goes on.
    """
    await client.ask(
        "stop a container", lambda docker: docker.containers.container(container).stop(t=0)
    )


async def remove_container(client: EngineClient, container: str) -> None:
    """Remove a container by id or name, running or not, with the volumes that are its alone; none is fine.

    Returns when it is gone. Raises `Unavailable` if it stays.
    """
    for attempt in range(_TRIES):
        begun = time.monotonic()
        try:
            await client.ask(
                "remove a container",
                lambda docker: docker.containers.container(container).delete(force=True, v=True),
            )
            return
        except NotFound:
            return
        except Conflict:
            # The engine is at it already, for it removes those that have ended by itself.
            await asyncio.sleep(_GONE_SECONDS)
        except Unavailable as error:
            if error.details.get("is_silent"):
                raise
            # Podman fails to kill one that has just ended.
            is_late = attempt >= _FAILURES or time.monotonic() - begun > _QUICK_SECONDS
            # Nor does Docker kill one of runsc that is paused.
            if not await _unpause(client, container) and is_late:
                raise
            await asyncio.sleep(_GONE_SECONDS)
    raise Unavailable(f"{client.name} does not get container {container} removed; try again")


async def _unpause(client: EngineClient, container: str) -> bool:
    """Let a container go on; return whether it was paused."""
    try:
        await client.ask(
            "resume a container", lambda docker: docker.containers.container(container).unpause()
        )
    except AtollError:
        return False
    return True


async def remove_volumes(client: EngineClient, node: str, container: str) -> None:
    """Remove all volumes that a node made for a container that goes by this name; none is fine."""
    filters = {"label": [f"{labels.NODE}={node}"]}
    answer = await client.ask("list volumes", lambda docker: docker.volumes.list(filters=filters))
    for each in answer["Volumes"] or ():
        if f"atoll-{(each['Labels'] or {}).get(labels.SANDBOX)}" == container:
            await remove_volume(client, each["Name"])


async def remove_volume(client: EngineClient, volume: str) -> None:
    """Remove a volume that no container has any more; none is fine."""
    try:
        found = await client.ask("find a volume", lambda docker: docker.volumes.get(volume))
        await client.ask("remove a volume", lambda _docker: found.delete(force=True))
    except NotFound:
        return
