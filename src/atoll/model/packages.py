"""Packages to be installed: names and versions, checked before any installer sees them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll.errors import InvalidRequest, LimitExceeded

Packages = Mapping[str, str] | Sequence[str]

_MOST = 200
_LONGEST = 200
_PYTHON_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PYTHON_VERSION = r"(?:===|==|>=|<=|~=|!=|<|>)[A-Za-z0-9][A-Za-z0-9.*+!_-]*"
_PYTHON = re.compile(
    rf"({_PYTHON_NAME})(\[{_PYTHON_NAME}(?:,{_PYTHON_NAME})*\])?({_PYTHON_VERSION}(?:,{_PYTHON_VERSION})*)?"
)
_NODE = re.compile(
    r"((?:@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*)(?:@([A-Za-z0-9^~<>=*.+-]+))?"
)
_R = re.compile(r"([A-Za-z][A-Za-z0-9.]*[A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the packages of a language are written."""

    pattern: re.Pattern[str]
    between: str  # name and version; empty: there is no choice of versions
    example: str


_KINDS = {
    "python": _Kind(_PYTHON, "==", "'pandas', 'pandas==2.2.3' or 'pandas>=2,<3'"),
    "node": _Kind(_NODE, "@", "'lodash', '@types/node' or 'lodash@4.17.21'"),
    "r": _Kind(_R, "", "'jsonlite'"),
}


def parse_packages(packages: Packages, language: str = "python") -> tuple[str, ...]:
    """Return what an installer is told: each package once, in order of its name.

    It may be a list such as `["pandas==2.2.3"]`, or versions by name, of which an empty one means the newest.

    Raises:
        InvalidRequest: what is no name or version, such as an option, an address or a path.
        LimitExceeded: too many at once.
    """
    kind = _KINDS.get(language)
    if kind is None:
        raise InvalidRequest(
            f"packages of {language} cannot be installed; there is: {', '.join(_KINDS)}"
        )
    texts = [_check(text, kind) for text in _as_texts(packages, kind)]
    if len(texts) > _MOST:
        raise LimitExceeded(f"{len(texts)} packages are too many at once; the most is {_MOST}")
    return tuple(sorted(dict.fromkeys(texts), key=str.lower))


def _as_texts(packages: Packages, kind: _Kind) -> list[str]:
    if isinstance(packages, Mapping):
        return [_with_version(name, version, kind) for name, version in packages.items()]
    if isinstance(packages, str) or not isinstance(packages, Sequence):
        raise InvalidRequest(
            f"packages is {type(packages).__name__}; it has to be a list, or versions by name"
        )
    return list(packages)


def _with_version(name: str, version: str, kind: _Kind) -> str:
    if not isinstance(name, str) or not isinstance(version, str | None):
        raise InvalidRequest("packages has to hold names and versions as text")
    if not version:
        return name
    if not kind.between:
        raise InvalidRequest(f"package {name[:80]!r} has no choice of versions; leave it empty")
    return name + (version if version[0] in "<>=!~" else f"{kind.between}{version}")


def _check(text: str, kind: _Kind) -> str:
    if not isinstance(text, str) or len(text) > _LONGEST or not kind.pattern.fullmatch(text):
        raise InvalidRequest(
            f"{str(text)[:80]!r} is no package; write it like {kind.example}",
            package=str(text)[:80],
        )
    return text
