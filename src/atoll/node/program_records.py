"""Records of a program that holds sandboxes itself: in memory, but for persistent ones, which outlive it.

Each of those is a file, there from before it is made until after it is destroyed, whoever is killed meanwhile. Whether a
program has it now is told by the lock on its workspace, not by this.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from atoll.errors import Unavailable
from atoll.model.ids import SandboxId, is_id
from atoll.model.sandbox import SandboxState
from atoll.node.records import IdempotencyRecord, MemoryRecords, Record, SandboxRecord

_MOST_BYTES = 1 << 20
_log = logging.getLogger(__name__)


class ProgramRecords(MemoryRecords):
    """Records that end with the process, except those of persistent sandboxes."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._writing = threading.Lock()

    def remember(
        self, record: Record, key: IdempotencyRecord | None = None, *, sync: bool = False
    ) -> None:
        """Keep a record; that of a persistent sandbox on disk, too, as long as that lives."""
        super().remember(record, key, sync=sync)
        if isinstance(record, SandboxRecord) and record.spec.get("persistent"):
            try:
                self._keep(record)
            except OSError as error:
                raise Unavailable(
                    f"sandbox {record.id} cannot be remembered in {self._folder}: {error.strerror}"
                ) from error

    def may_have_sandbox(self, sandbox_id: SandboxId) -> bool:
        """Whether there may have been a sandbox of this id, here or, if it is persistent, in another program."""
        return (
            super().may_have_sandbox(sandbox_id) or find_kept(self._folder, sandbox_id) is not None
        )

    async def find_sandbox(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        """Return a sandbox of this program, or a persistent one of another."""
        return await super().find_sandbox(sandbox_id) or find_kept(self._folder, sandbox_id)

    def _keep(self, record: SandboxRecord) -> None:
        path = self._folder / f"{record.id}.json"
        if record.ended_at is not None:
            path.unlink(missing_ok=True)
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        with self._writing, open(fresh, "w", opener=_private) as file:
            json.dump(asdict(record), file)
            file.flush()
            os.fsync(file.fileno())
            fresh.replace(path)


def find_kept(folder: Path, sandbox_id: str) -> SandboxRecord | None:
    """Return the persistent sandbox of that id, whichever program has it or had it; None if there is none."""
    if not is_id(sandbox_id):
        return None
    path = folder / f"{sandbox_id}.json"
    try:
        with path.open() as file:
            fields = json.loads(file.read(_MOST_BYTES))
        return SandboxRecord(**{**fields, "state": SandboxState(fields["state"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        _log.error("sandbox.damaged", extra={"path": str(path), "reason": str(error)})
        return None


def list_kept(folder: Path) -> Iterator[SandboxRecord]:
    """Yield all persistent sandboxes of a folder."""
    if folder.is_dir():
        for path in sorted(folder.glob("*.json")):
            record = find_kept(folder, path.stem)
            if record is not None:
                yield record


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
