"""Removes what nobody will ask for any more: history that is old, and folders that no record tells of."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from atoll.errors import AtollError
from atoll.node.attempt_log import AttemptLog
from atoll.node.clock import Calendar
from atoll.node.log_books import LogBooks
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
        books: LogBooks,
        attempts: AttemptLog,
        kernels: Path,
        is_hosted: Callable[[str], bool],
        calendar: Calendar,
    ) -> None:
        self._is_hosted = is_hosted  # whether there is a living sandbox of an engine's id
        self._rules = rules
        self._calendar = calendar
        self._records = records
        self._books = books
        self._attempts = attempts
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
        before = self._calendar.today() - self._rules.history_seconds
        await self._records.prune(before=before, keep=self._rules.history_count)
        prune = partial(self._attempts.prune, before=before, keep=self._rules.history_count)
        await anyio.to_thread.run_sync(prune)
        # Also those that were held before: one may be written into while it is asked which are named, and let go then.
        held = self._books.held()
        known = held | await self._records.books()
        await self._remove_orphans(
            self._books.folder, lambda name: name in known or name in self._books.held()
        )
        await self._remove_orphans(self._kernels, self._has_kernel)

    async def _remove_orphans(self, folder: Path, is_known: Callable[[str], bool]) -> None:
        for path in await anyio.to_thread.run_sync(lambda: list(self._old(folder))):
            if not is_known(path.name):
                _log.info("housekeeping.orphan", extra={"folder": f"{folder.name}/{path.name}"})
                await _remove(path)

    def _has_kernel(self, name: str) -> bool:
        sandbox, _, process = name.partition(".")
        return not process or self._is_hosted(sandbox)

    def _old(self, folder: Path) -> Iterator[Path]:
        if not folder.exists():
            return
        latest = self._calendar.today() - self._rules.orphan_age_seconds
        for path in folder.iterdir():
            try:
                if path.stat().st_mtime < latest:
                    yield path
            except FileNotFoundError:
                pass  # its owner was quicker


async def _remove(path: Path) -> None:
    await anyio.to_thread.run_sync(lambda: shutil.rmtree(path, ignore_errors=True))
