"""Removes what nobody will ask for any more: history that is old, and folders that no record tells of."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from atoll.errors import AtollError
from atoll.model.ids import ExecutionId
from atoll.node.records import Records

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HousekeepingRules:
    """How often to look, and what is old."""

    sweep_seconds: float = 60.0
    orphan_age_seconds: float = (
        300.0  # younger folders may be somebody's who is just about to say so
    )
    history_seconds: float = 30 * 86400.0
    history_count: int = 10_000


class Housekeeping:
    """Keeps a data directory from growing for ever."""

    def __init__(
        self,
        rules: HousekeepingRules,
        records: Records,
        executions: Path,
        kernels: Path,
        is_hosted: Callable[[str], bool],
    ) -> None:
        self._is_hosted = is_hosted  # whether there is a living sandbox of an engine's id
        self._rules = rules
        self._records = records
        self._executions = executions
        self._kernels = kernels

    async def run(self) -> None:
        """Tidy up, for ever."""
        while True:
            try:
                await self.tidy()
            except AtollError as error:
                # The database is away; the next round finds the same, and more.
                _log.warning("housekeeping.failed", extra={"reason": error.message})
            await anyio.sleep(self._rules.sweep_seconds)

    async def tidy(self) -> None:
        """Forget old history, and remove folders that belong to nothing."""
        before = time.time() - self._rules.history_seconds
        forgotten = await self._records.prune(before=before, keep=self._rules.history_count)
        for execution_id in forgotten:
            await _remove(self._executions / execution_id)
        await self._remove_orphans(self._executions, self._has_execution)
        await self._remove_orphans(self._kernels, self._has_sandbox)

    async def _remove_orphans(
        self, folder: Path, is_known: Callable[[str], Awaitable[bool]]
    ) -> None:
        for path in await anyio.to_thread.run_sync(lambda: list(self._old(folder))):
            if not await is_known(path.name):
                _log.info("housekeeping.orphan", extra={"folder": f"{folder.name}/{path.name}"})
                await _remove(path)

    def _old(self, folder: Path) -> Iterator[Path]:
        if not folder.exists():
            return
        latest = time.time() - self._rules.orphan_age_seconds
        for path in folder.iterdir():
            try:
                if path.stat().st_mtime < latest:
                    yield path
            except FileNotFoundError:
                pass  # its owner was quicker

    async def _has_execution(self, name: str) -> bool:
        return await self._records.find_execution(ExecutionId(name)) is not None

    async def _has_sandbox(self, name: str) -> bool:
        return self._is_hosted(name)


async def _remove(path: Path) -> None:
    await anyio.to_thread.run_sync(lambda: shutil.rmtree(path, ignore_errors=True))
