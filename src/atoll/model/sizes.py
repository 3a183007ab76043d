"""Sizes as people write them: `256m`, `256MB`, `256MiB` or plain bytes."""

from __future__ import annotations

import re

from atoll.errors import InvalidRequest

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_LARGEST = 1 << 60


def parse_size(text: str | int) -> int:
    """Return the bytes that `text` names.

    `m` and `MiB` are binary and so is `MB`, as container engines read it.
    """
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise InvalidRequest(f"size {text!r} is neither a number of bytes nor text like '256m'")
    match = _SIZE.fullmatch(str(text))
    if match is None:
        raise InvalidRequest(f"size {text!r} is not understood; write bytes, '256m', '256MB' or '1GiB'")
    size = int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])
    if size > _LARGEST:
        raise InvalidRequest(f"size {text!r} is larger than any machine; the most is {_LARGEST} bytes")
    return size


def format_size(size: int) -> str:
    """Return `size` in the largest unit that keeps it readable, such as `256 MiB`."""
    amount, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.4g} {unit}"
