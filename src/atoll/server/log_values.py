"""Makes any value fit for one line of a log: short, without secrets, without characters that act on a reader."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

_LONGEST_TEXT = 4096
_LONGEST_TRACEBACK = 16384
_MOST_ITEMS = 50
_DEEPEST = 4

HIDDEN = "[hidden]"
# Loaded now: a process that has no descriptor left could not load it, just when there is something to tell.
_ESCAPE = codecs.lookup("unicode_escape").encode
_SECRET_NAME = re.compile(
    r"secret|token|passw|authori[sz]ation|credential|cookie|api_?key|(^|[_.-])keys?($|[_.-])",
    re.IGNORECASE,
)
# Secrets inside of text: of an address, a header, a query, or with their name in front.
_SECRET_IN_TEXT = re.compile(
    r"(?P<user>://[^\s/:@]{0,200}:)[^\s/@]{1,500}(?=@)"
    r"|(?P<scheme>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}"
    r"|(?P<query>[?&;](?:\w{0,40}_)?(?:key|signature)=)[^\s&;\"']+"
    r"|(?P<pair>(?:api_key|passw(?:or)?d|secret|token)[\"']?\s{0,2}[=:]\s{0,2}[\"']?)[^\s&;,\"']+",
    re.IGNORECASE,
)


def plain_field(name: str, value: object, depth: int = 0) -> object:
    """Return the value of a field, which is hidden if its name says that it is secret."""
    return HIDDEN if _SECRET_NAME.search(name) else plain(value, depth)


def plain(value: object, depth: int = 0) -> object:
    """Return text, a number, a boolean, None, or lists and mappings of these."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 64 else plain_text(hex(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _plain_items(value, depth + 1)
    return plain_text(_describe(value))


def _plain_items(values: Mapping[object, object] | Collection[object], depth: int) -> object:
    if depth > _DEEPEST:
        # Not its text, in which no name could be looked at.
        return f"<{len(values)} items>"
    if isinstance(values, Mapping):
        return _plain_mapping(values, depth)
    return [plain(each, depth) for each in _first(values)]


def plain_text(text: str) -> str:
    """Return one line of printable text, its end cut off if it is long."""
    if len(text) <= _LONGEST_TEXT:
        return escape(hide_secrets(text))
    # What is beyond the cut is looked at, too: it may be the end of a secret.
    kept = hide_secrets(text[: 2 * _LONGEST_TEXT])[:_LONGEST_TEXT]
    return f"{escape(kept)}… ({len(text)} characters)"


def plain_traceback(text: str) -> str:
    """Return a traceback as one line; if it is long, its end, where the error stands."""
    hidden = hide_secrets(text)
    cut = hidden[-_LONGEST_TRACEBACK:]
    return escape(cut if cut == hidden else f"…{cut}")


def hide_secrets(text: str) -> str:
    """Return `text` without the passwords and tokens that can be told by their surroundings."""
    return _SECRET_IN_TEXT.sub(lambda match: f"{match[match.lastgroup or 0]}{HIDDEN}", text)


def escape(text: str) -> str:
    """Return `text` with a visible escape for whatever is not printable.

    That is: control characters, ends of lines, changes of direction, halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return _ESCAPE(character)[0].decode("ascii")


def _plain_mapping(mapping: Mapping[object, object], depth: int) -> dict[str, object]:
    names = [(name if isinstance(name, str) else _describe(name)) for name in _first(mapping)]
    values = _first(mapping.values())
    return {
        plain_text(name): plain_field(name, value, depth)
        for name, value in zip(names, values, strict=True)
    }


def _first(values: Iterable[object]) -> list[object]:
    return list(islice(values, _MOST_ITEMS))


def _describe(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a log line must not fail for what a stranger's class does
        return f"<{type(value).__name__} without a text>"
