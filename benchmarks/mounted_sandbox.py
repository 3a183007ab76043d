"""A sandbox that works in a folder of the host: what an operator can allow, below the SDK."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from anyio.from_thread import start_blocking_portal

from atoll.engines.catalog import DEFAULT_ENGINE, make_engine
from atoll.model.limits import Limits
from atoll.model.sandbox import Mount, SandboxSpec
from atoll.model.sizes import GIB
from atoll.node.commands import Commands
from tools.places import must_run, own_folder

# More cpus than any machine has, so that none is taken away.
# Whoever cannot make cgroups measures without them; the conditions say what enforces which limit.
LIMITS = Limits(cpus=4096, memory_bytes=4 * GIB, enforcement="best_effort")

# Where the sandbox has the folder.
WORK = "/mnt/work"


class MountedSandbox:
    """One sandbox, with an engine of its own because only an engine's owner says what may be mounted."""

    def __init__(self, folder: Path, place: Path) -> None:
        self._folder = folder
        self._data = own_folder(f"data-{os.getpid()}", place)

    def __enter__(self) -> Self:
        with ExitStack() as end:
            end.callback(must_run, ["rm", "-rf", "--", str(self._data)])
            self._portal = end.enter_context(start_blocking_portal("asyncio"))
            engine = make_engine(DEFAULT_ENGINE, data_dir=self._data, mountable=[self._folder])
            end.callback(self._portal.call, engine.close)
            mount = Mount(str(self._folder), WORK, read_only=False)
            spec = SandboxSpec(limits=LIMITS, mounts=[mount])
            self._commands = Commands(self._portal.call(engine.create, spec))
            self._end = end.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.close()

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> float:
        """Run a command in the folder to its end; return the seconds it took."""
        return self._portal.call(self._run, argv, env)

    async def _run(self, argv: Sequence[str], env: Mapping[str, str]) -> float:
        started = time.perf_counter()
        result = await self._commands.run(argv, cwd=WORK, env=env)
        seconds = time.perf_counter() - started
        result.check()
        return seconds
