"""Sizes as people write them: `256m`, `256MB`, `256MiB` or plain bytes."""

from __future__ import annotations

import re

from atoll.errors import InvalidRequest

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_SIZE = re.compile(r"\s*([0-9]{1,20})(\.[0-9]{1,20})?\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB}
_LARGEST = 1 << 60


def parse_size(text: str | int) -> int:
    """Return the bytes that `text` names.

    `m` and `MiB` are binary and so is `MB`, as container engines read it.
    """
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise InvalidRequest(f"size {text!r} is neither a number of bytes nor text like '256m'")
    size = _parse_text(text) if isinstance(text, str) else text
    if not 0 <= size <= _LARGEST:
        raise InvalidRequest(
            f"a size has to lie between 0 and {_LARGEST} bytes; no machine has more"
        )
    return size


def _parse_text(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"size {text[:80]!r} is not understood; write bytes, '256m', '256MB' or '1GiB'"
        )
    unit = _UNITS[match[3].lower()]
    # The whole part apart: a float does not hold every number of bytes.
    return int(match[1]) * unit + int(float(match[2] or 0) * unit)


def format_size(size: int) -> str:
    """Return `size` in the largest unit that keeps it readable, such as `256 MiB`."""
    amount, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    digits = ".4g" if amount < 10_000 else ".0f"
    return f"{amount:{digits}} {unit}"
