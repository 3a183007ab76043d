"""What sandboxes tried to reach, numbered for each, with a bound on how much is kept; in memory, or in files that outlive the node."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from atoll.errors import InvalidRequest
from atoll.model.attempt import AttemptInfo, NotedAttempt
from atoll.model.ids import SandboxId

# Of each sandbox at least so many, the newest, are kept.
KEPT_ATTEMPTS = 5_000

_log = logging.getLogger(__name__)


class AttemptLog(Protocol):
    """What sandboxes tried to reach. May be used from any thread."""

    def note(self, attempts: Sequence[AttemptInfo]) -> None:
        """Keep attempts, in this order."""
        ...

    def read(self, sandbox: SandboxId, start: int = 0, limit: int = 1000) -> Sequence[NotedAttempt]:
        """Return up to `limit` attempts of a sandbox, from number `start` on, of those that are kept."""
        ...

    def used(self, sandbox: SandboxId) -> tuple[int, int]:
        """Return how many bytes a sandbox has sent and fetched."""
        ...

    def prune(self, *, before: float, keep: int) -> None:
        """Forget sandboxes that tried nothing since an instant, or are not among the last `keep` that did."""
        ...


class _Numbers:
    """Numbers attempts, and adds up what they moved."""

    def __init__(self, number: int = 0, used: tuple[int, int] = (0, 0)) -> None:
        self.next, self.used = number, used

    def note(self, attempt: AttemptInfo) -> NotedAttempt:
        up, down = self.used
        self.used = (up + attempt.up_bytes, down + attempt.down_bytes)
        noted = NotedAttempt(self.next, attempt, self.used)
        self.next += 1
        return noted


class MemoryAttempts:
    """For embedded nodes, whose sandboxes end with them."""

    def __init__(self, most_sandboxes: int = 100) -> None:
        self._most = most_sandboxes
        self._guard = threading.Lock()
        self._logs: dict[SandboxId, tuple[_Numbers, deque[NotedAttempt]]] = {}

    def note(self, attempts: Sequence[AttemptInfo]) -> None:
        with self._guard:
            for attempt in attempts:
                # The last to be told of is the last in the order.
                log = self._logs.pop(attempt.sandbox, None) or (
                    _Numbers(),
                    deque(maxlen=KEPT_ATTEMPTS),
                )
                log[1].append(log[0].note(attempt))
                self._logs[attempt.sandbox] = log
            while len(self._logs) > self._most:
                self._logs.pop(next(iter(self._logs)))

    def read(self, sandbox: SandboxId, start: int = 0, limit: int = 1000) -> Sequence[NotedAttempt]:
        with self._guard:
            _numbers, kept = self._logs.get(sandbox, (None, ()))
            return [each for each in kept if each.number >= start][:limit]

    def used(self, sandbox: SandboxId) -> tuple[int, int]:
        with self._guard:
            found = self._logs.get(sandbox)
            return (0, 0) if found is None else found[0].used

    def prune(self, *, before: float, keep: int) -> None:
        """There is nothing to do: the bound on sandboxes is enough."""


class KeptAttempts:
    """In two files for each sandbox, one line for each attempt; the older file goes when the newer one is full."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = threading.Lock()
        self._numbers: dict[SandboxId, _Numbers] = {}

    def note(self, attempts: Sequence[AttemptInfo]) -> None:
        with self._guard:
            for sandbox, group in groupby(attempts, key=lambda attempt: attempt.sandbox):
                try:
                    self._note(sandbox, list(group))
                except OSError as error:
                    # Nobody waits for it who could be told; what was tried has been carried out or refused.
                    _log.error(
                        "egress.attempts_not_kept",
                        extra={"sandbox": sandbox, "reason": error.strerror},
                    )

    def _note(self, sandbox: SandboxId, attempts: Iterable[AttemptInfo]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        numbers = self._numbers_of(sandbox)
        lines = b""
        for attempt in attempts:
            noted = numbers.note(attempt)
            lines += _to_line(noted)
            if numbers.next % KEPT_ATTEMPTS == 0:
                self._append(sandbox, lines)
                lines = b""
                os.replace(self._new(sandbox), self._old(sandbox))
        self._append(sandbox, lines)

    def _append(self, sandbox: SandboxId, lines: bytes) -> None:
        fd = os.open(
            self._new(sandbox), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            # A line that was not finished by a node that was killed must not run into the next one.
            size = os.fstat(fd).st_size
            if size and not self._ends_a_line(sandbox, size):
                lines = b"\n" + lines
            while lines:
                lines = lines[os.write(fd, lines) :]
        finally:
            os.close(fd)

    def _ends_a_line(self, sandbox: SandboxId, size: int) -> bool:
        with self._new(sandbox).open("rb") as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"

    def _numbers_of(self, sandbox: SandboxId) -> _Numbers:
        if sandbox not in self._numbers:
            last = deque(self._lines(sandbox), maxlen=1)
            self._numbers[sandbox] = (
                _Numbers(last[0].number + 1, last[0].used) if last else _Numbers()
            )
        return self._numbers[sandbox]

    def read(self, sandbox: SandboxId, start: int = 0, limit: int = 1000) -> Sequence[NotedAttempt]:
        with self._guard:
            found = []
            for noted in self._lines(sandbox):
                if noted.number >= start:
                    found.append(noted)
                    if len(found) >= limit:
                        break
            return found

    def used(self, sandbox: SandboxId) -> tuple[int, int]:
        with self._guard:
            return self._numbers_of(sandbox).used

    def prune(self, *, before: float, keep: int) -> None:
        with self._guard:
            times: dict[SandboxId, float] = {}
            for path in self._files():
                with suppress(FileNotFoundError):
                    sandbox = SandboxId(path.stem)
                    times[sandbox] = max(path.stat().st_mtime, times.get(sandbox, 0.0))
            newest = sorted(times, key=lambda sandbox: times[sandbox], reverse=True)
            for sandbox in [*newest[keep:], *(each for each in newest if times[each] < before)]:
                self._numbers.pop(sandbox, None)
                self._new(sandbox).unlink(missing_ok=True)
                self._old(sandbox).unlink(missing_ok=True)

    def _files(self) -> Sequence[Path]:
        return list(self._folder.iterdir()) if self._folder.is_dir() else []

    def _lines(self, sandbox: SandboxId) -> Iterator[NotedAttempt]:
        for path in (self._old(sandbox), self._new(sandbox)):
            try:
                with path.open("rb") as file:
                    yield from filter(None, map(_from_line, file))
            except FileNotFoundError:
                continue

    def _new(self, sandbox: SandboxId) -> Path:
        return self._folder / f"{sandbox}.new"

    def _old(self, sandbox: SandboxId) -> Path:
        return self._folder / f"{sandbox}.old"


def _to_line(noted: NotedAttempt) -> bytes:
    fields = {
        "number": noted.number,
        "used": noted.used,
        "attempt": noted.attempt.to_json(),
    }
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _from_line(line: bytes) -> NotedAttempt | None:
    try:
        fields: Mapping[str, Any] = json.loads(line)
        up, down = fields["used"]
        return NotedAttempt(
            int(fields["number"]), AttemptInfo.from_json(fields["attempt"]), (int(up), int(down))
        )
    except (ValueError, KeyError, TypeError, InvalidRequest):
        return None  # a node was killed while it wrote this line
