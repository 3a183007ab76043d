"""What is round a steward under gVisor: the processes of `runsc`, their cgroup, and a directory."""

from __future__ import annotations

import shutil
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import anyio
import anyio.to_thread

from atoll.engines.cgroups.contract import Events, SandboxCgroup
from atoll.engines.gvisor.pipes import Complaints
from atoll.errors import Unsupported
from atoll.model.process import EndReason, ProcessEnd
from atoll.model.sizes import format_size


class GvisorWall:
    """One `runsc` with all that belongs to it."""

    def __init__(
        self,
        process: Popen[bytes],
        complaints: Complaints,
        cgroup: SandboxCgroup,
        directory: Path,
        memory_bytes: int,
    ) -> None:
        self._process = process
        self._complaints = complaints
        self._cgroup = cgroup
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._removing = anyio.Lock()
        self._removed = False
        self._events = Events()

    @property
    def pid(self) -> int:
        """The `runsc` that everything else descends from."""
        return self._process.pid

    @property
    def cgroup(self) -> SandboxCgroup:
        """Where all its processes are."""
        return self._cgroup

    async def pause(self) -> None:
        """Stop every process in place."""
        await anyio.to_thread.run_sync(self._cgroup.freeze, True)

    async def resume(self) -> None:
        """Let every process go on."""
        await anyio.to_thread.run_sync(self._cgroup.freeze, False)

    async def stop(self) -> None:
        """Nothing could be kept."""
        raise Unsupported("engine 'gvisor' keeps nothing of a sandbox that ends")

    async def remove(self) -> None:
        """End every process and remove everything."""
        async with self._removing:
            if not self._removed:
                self._look()
                await anyio.to_thread.run_sync(self._remove)
                self._removed = True

    def _remove(self) -> None:
        # No order to `runsc`: it would have to be asked by way of the very thing that may be broken.
        with ExitStack() as steps:
            steps.callback(shutil.rmtree, self._directory, ignore_errors=True)
            steps.callback(self._cgroup.remove)
            steps.callback(self._complaints.close)
            steps.callback(self._process.wait)
            self._cgroup.end_all()

    def why(self) -> str:
        """Return what is known of the sandbox's end; nothing if nothing is."""
        events = self._look()
        if events.out_of_memory:
            size = format_size(self._memory_bytes)
            return f"it took more than its memory limit of {size}; ask for more with memory_bytes"
        if events.too_many_processes:
            return "its processes took more threads of the host than it may have; run fewer at once"
        return self._complaints.read()

    def explain(self, end: ProcessEnd) -> ProcessEnd:
        """Tell deaths apart: memory is the whole sandbox's, and so is the end of it."""
        was_killed = end.reason is EndReason.LOST or end.signal == signal.SIGKILL
        if was_killed and end.reason is not EndReason.KILLED:
            events = self._look()
            if events.out_of_memory:
                return replace(end, reason=EndReason.OUT_OF_MEMORY)
            if events.too_many_processes:
                return replace(end, reason=EndReason.TOO_MANY_PROCESSES)
        return end

    def _look(self) -> Events:
        """Return what its limits have counted, also when there is nothing to look at any more."""
        if not self._removed:
            self._events = self._cgroup.events()
        return self._events
