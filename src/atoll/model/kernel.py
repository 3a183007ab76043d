"""Cells, and what comes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from atoll.errors import CommandFailed


class CellStatus(StrEnum):
    """How a cell ended."""

    OK = "ok"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    TIMED_OUT = "timed_out"  # interrupted by its timeout; its kernel lives on
    DIED = "died"  # its kernel ended with it; variables are gone, files are there


@dataclass(frozen=True, slots=True)
class Bundle:
    """One value in several forms, by MIME type."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    is_main: bool = False  # the value of the cell's last expression


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception that ended a cell."""

    name: str
    value: str
    traceback: Sequence[str]


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of a piece of code. An exception in it is a result, not an error."""

    status: CellStatus
    count: int
    results: Sequence[Bundle]
    stdout: str
    stderr: str
    truncated: bool
    error: CellError | None
    duration: float
    death: str = ""  # why the kernel ended, if it did

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end."""
        return self.status is CellStatus.OK

    @property
    def text(self) -> str | None:
        """The main result as text."""
        for bundle in self.results:
            if bundle.is_main:
                text = bundle.data.get("text/plain")
                return None if text is None else str(text)
        return None

    def check(self) -> Cell:
        """Return this cell, or raise `CommandFailed` if it did not run to its end."""
        if self.ok:
            return self
        what = f"{self.error.name}: {self.error.value}" if self.error else self.death or self.status
        raise CommandFailed(f"the cell failed: {what}", status=self.status.value)
