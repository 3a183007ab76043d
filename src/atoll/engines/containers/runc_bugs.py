"""Bugs by which containers got out of runc, and which versions have them.

Versions are upstream's: a distribution may carry a fix under an older number, so a hit is a question, not a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# The fourth number is that of a release candidate; what was released comes after all of them.
Version = tuple[int, int, int, int]
Series = tuple[int, int]

RELEASED = 1 << 16
_NUMBER = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:[-~]rc\.?(\d+))?")


@dataclass(frozen=True, slots=True)
class RuncBug:
    """A bug from `since` up to, not including, `fixed`; `mended` gives the first good version of older series."""

    cve: str
    title: str
    since: Version
    fixed: Version
    mended: Mapping[Series, Version] = field(default_factory=dict)

    def affects(self, version: Version) -> bool:
        """Whether upstream's runc of that version has the bug."""
        return self.since <= version < self.mended.get(version[:2], self.fixed)


RUNC_BUGS: Sequence[RuncBug] = (
    RuncBug("CVE-2019-5736", "runc itself is overwritten", (0, 0, 0, 0), (1, 0, 0, 7)),
    RuncBug("CVE-2021-30465", "mounts led outside by links", (0, 0, 0, 0), (1, 0, 0, 95)),
    RuncBug(
        "CVE-2024-21626",
        "a directory of the host left open",
        (1, 0, 0, 93),
        (1, 2, 0, 1),
        {(1, 1): (1, 1, 12, RELEASED)},
    ),
    *(
        RuncBug(
            cve,
            title,
            (0, 0, 0, 0),
            (1, 4, 0, 3),
            {(1, 2): (1, 2, 8, RELEASED), (1, 3): (1, 3, 3, RELEASED)},
        )
        for cve, title in (
            ("CVE-2025-31133", "masked paths bound to others"),
            ("CVE-2025-52565", "the console bound to another place"),
            ("CVE-2025-52881", "writes to /proc led elsewhere"),
        )
    ),
)


def known_bugs(version: str) -> Sequence[str]:
    """Return the bugs that a runc of this version has, as far as it can be read."""
    number = parse_version(version)
    if number is None:
        return []
    return [f"{bug.cve} ({bug.title})" for bug in RUNC_BUGS if bug.affects(number)]


def parse_version(text: str) -> Version | None:
    """Return the first version in a text, such as `1.1.5+ds1` or `runc version 1.0.0-rc93`."""
    match = _NUMBER.search(text)
    if match is None:
        return None
    major, minor, patch, candidate = match.groups()
    return int(major), int(minor), int(patch), RELEASED if candidate is None else int(candidate)
