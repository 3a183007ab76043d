"""What a search for lines in files finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CutBy = Literal["matches", "bytes", "time"]


@dataclass(frozen=True, slots=True)
class Match:
    """One line that matches."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The lines found; `cut_by` says what ended the search before its time."""

    matches: list[Match]
    cut_by: CutBy | None
