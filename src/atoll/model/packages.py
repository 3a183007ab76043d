"""Packages to be installed: names and versions, checked before any installer sees them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll.errors import InvalidRequest, LimitExceeded
from atoll.model.language import find_language, language_of
from atoll.model.template import NODE_TEMPLATE, PYTHON_TEMPLATE, R_TEMPLATE

Packages = Mapping[str, str] | Sequence[str]

# Whose packages a template can be built of, and so given to a sandbox when it is made.
BUILT_LANGUAGES = ("python", "node")

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


_NEVER = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the packages of a language are written."""

    pattern: re.Pattern[str]
    between: str  # name and version; empty: there is no choice of versions
    example: str
    comparisons: str = ""  # what a version may begin with that stands for itself between both
    exact: re.Pattern[str] = _NEVER  # of what is the same whenever it is installed


_KINDS = {
    "python": _Kind(
        _PYTHON, "==", "'pandas', 'pandas==2.2.3' or 'pandas>=2,<3'", "<>=!~", re.compile(".*==.*")
    ),
    "node": _Kind(
        _NODE,
        "@",
        "'lodash', '@types/node' or 'lodash@4.17.21'",
        exact=re.compile(r".+@=?\d+\.\d+\.\d+(?:[+-].*)?"),
    ),
    "r": _Kind(_R, "", "'jsonlite'"),
}


def parse_packages(packages: Packages, language: str = "python") -> tuple[str, ...]:
    """Return what an installer is told: each package once, in order of its name.

    It may be a list such as `["pandas==2.2.3"]`, or versions by name, of which an empty one means the newest.

    Raises:
        InvalidRequest: what is no name or version, such as an option, an address or a path.
        LimitExceeded: too many at once.
    """
    kind = _KINDS[find_package_language(language)]
    texts = [_check(text, kind) for text in _as_texts(packages, kind)]
    if len(texts) > _MOST:
        raise LimitExceeded(f"{len(texts)} packages are too many at once; the most is {_MOST}")
    return tuple(sorted(dict.fromkeys(texts), key=str.lower))


def parse_packages_for(template: str, packages: Packages) -> tuple[str, ...]:
    """Return what sandboxes of a template are to have besides; errors as `parse_packages` and `check_packages_for`."""
    if not packages:
        return ()
    check_packages_for(template)
    return parse_packages(packages, language_of(template))


def check_packages_for(template: str) -> None:
    """Raise `InvalidRequest` unless packages can be given to sandboxes of that template."""
    if template in (PYTHON_TEMPLATE, NODE_TEMPLATE):
        return
    instead = "leave one of both out"
    if template == R_TEMPLATE:
        instead = (
            "those of R are what the machine has: install them there, for example with apt-get install"
            " r-cran-jsonlite, or into the sandbox with install('jsonlite', language='r') and"
            " network='registries'"
        )
    raise InvalidRequest(
        f"packages go with template {PYTHON_TEMPLATE!r} or {NODE_TEMPLATE!r}, not {template!r}; {instead}",
        template=template,
    )


def are_exact(packages: Sequence[str], language: str) -> bool:
    """Whether packages, as `parse_packages` returns them, are the same whenever they are installed."""
    return all(_KINDS[language].exact.fullmatch(each) for each in packages)


def find_package_language(language: str) -> str:
    """Return the name of the language whose packages are meant; raise `InvalidRequest` where none can be installed."""
    found = find_language(language) if isinstance(language, str) else None
    if found is None or found.name not in _KINDS:
        raise InvalidRequest(
            f"packages of {str(language)[:80]} cannot be installed; there is: {', '.join(_KINDS)}"
        )
    return found.name


def find_built_language(language: str) -> str:
    """Return the name of the language that a template is built for; raise `InvalidRequest` where it can be of none."""
    name = find_package_language(language)
    if name not in BUILT_LANGUAGES:
        raise InvalidRequest(
            f"templates are built of packages of {' or '.join(BUILT_LANGUAGES)}, not of {name!r};"
            " others can be built of an image",
            language=name,
        )
    return name


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
    return name + (version if version[0] in kind.comparisons else f"{kind.between}{version}")


def _check(text: str, kind: _Kind) -> str:
    if not isinstance(text, str) or len(text) > _LONGEST or not kind.pattern.fullmatch(text):
        raise InvalidRequest(
            f"{str(text)[:80]!r} is no package; write it like {kind.example}",
            package=str(text)[:80],
        )
    return text
