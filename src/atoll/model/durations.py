"""Durations as people write them: seconds, or `500ms`, `30s`, `5m`, `2h`, `7d`."""

from __future__ import annotations

import re

from atoll.errors import InvalidRequest

_DURATION = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d|)\s*", re.IGNORECASE)
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 100 * 365 * 86400.0


def parse_duration(text: str | float) -> float:
    """Return the seconds that `text` names; `m` are minutes."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise InvalidRequest(
            f"duration {str(text)[:80]!r} is neither a number of seconds nor text like '30s'"
        )
    seconds = _parse_text(text) if isinstance(text, str) else text
    # Not a number is neither below nor above anything, so the question is put this way round.
    if not 0 <= seconds <= _LONGEST:
        raise InvalidRequest("a duration has to lie between 0 and 100 years")
    return float(seconds)


def _parse_text(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"duration {text[:80]!r} is not understood; write seconds, '30s', '5m', '2h' or '7d'"
        )
    return float(match[1]) * _UNITS[match[2].lower()]
