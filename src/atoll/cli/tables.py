"""Tables for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from atoll.cli.messages import printable


def round_age(seconds: float) -> str:
    """Return an age in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def show_instant(time: str | None) -> str:
    """Return an instant by how far it is from now."""
    if time is None:
        return "-"
    seconds = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    return f"{round_age(seconds)} ago" if seconds >= 0 else f"in {round_age(-seconds)}"


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, the headings first."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        cells = (f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
        print(printable("  ".join(cells).rstrip()))
    print(end="", flush=True)
