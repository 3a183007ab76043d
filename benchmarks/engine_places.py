"""Every engine as a program asks for it: on daemons of the benchmark's own, with the image that peers run on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from atoll import ContainerOptions, Sandbox
from atoll.client.embedded import close_nodes
from atoll.model.container import Runtime
from benchmarks.atoll_side import POOL_SIZE, check_cell
from benchmarks.peers.peer import CODE
from tools.container_daemons import ContainerDaemon

_IMAGES = "ATOLL_CONTAINERS__IMAGES"


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """One engine, by the arguments of its sandboxes. What measures returns seconds."""

    arguments: Mapping[str, Any]

    def start(self) -> float:
        """Make a sandbox until its first command has ended."""
        return self._time("base", lambda sandbox: sandbox.commands.run(["true"], check=True))

    def first_cell(self) -> float:
        """Make a sandbox until its first cell has answered."""
        return self._time("python", lambda sandbox: check_cell(sandbox.run_code(CODE)))

    def pooled_first_cell(self) -> float:
        """The same with a sandbox from the pool, which is full before the clock starts."""
        Sandbox.warm(POOL_SIZE, "python", **self.arguments)
        return self.first_cell()

    def commands(self, count: int) -> list[float]:
        """Run commands one after the other in one sandbox."""
        with Sandbox("base", **self.arguments) as sandbox:
            sandbox.commands.run(["true"], check=True)
            return [self._command(sandbox) for _ in range(count)]

    def close(self) -> None:
        """Keep nothing ready any more."""
        Sandbox.warm(0, "python", **self.arguments)

    def _time(self, template: str, use: Callable[[Sandbox], object]) -> float:
        begun = time.perf_counter()
        sandbox = Sandbox.create(template, **self.arguments)
        try:
            use(sandbox)
            return time.perf_counter() - begun
        finally:
            sandbox.destroy()

    def _command(self, sandbox: Sandbox) -> float:
        begun = time.perf_counter()
        sandbox.commands.run(["true"], check=True)
        return time.perf_counter() - begun


@contextmanager
def container_place(
    daemon: ContainerDaemon, image: str, runtime: Runtime | None = None
) -> Iterator[EnginePlace]:
    """A container engine whose templates are all one image, until the end."""
    options = None if runtime is None else ContainerOptions(runtime=runtime)
    before = os.environ.get(_IMAGES)
    os.environ[_IMAGES] = f"base={image},python={image}"
    place = EnginePlace({"url": f"{daemon.name}+{daemon.url}", "container": options})
    try:
        yield place
        place.close()
    finally:
        # Another one may have another image.
        close_nodes()
        if before is None:
            del os.environ[_IMAGES]
        else:
            os.environ[_IMAGES] = before
