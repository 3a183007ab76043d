"""What a run has measured, and which defences it has seen matter; printed at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass

FIGURES: dict[str, str] = {}
REMOVALS: list[Removal] = []


@dataclass(frozen=True)
class Removal:
    """What an attack found with a defence, and what without it."""

    defence: str
    attack: str
    with_it: str
    without: str
    attestation: str  # what attestation says when the defence is missing


def sections() -> Iterator[tuple[str, list[str]]]:
    """Yield titles and lines."""
    if FIGURES:
        yield "measured", [f"{name}: {figure}" for name, figure in FIGURES.items()]
    if REMOVALS:
        heads = ("defence left out", "attack", "with it", "without it", "attestation")
        rows = [heads, *(astuple(each) for each in REMOVALS)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
        yield (
            "defences removed in turn",
            [
                "  ".join(
                    cell.ljust(width) for cell, width in zip(row, widths, strict=True)
                ).rstrip()
                for row in rows
            ],
        )
