"""Kernel bugs that let a local program become root, and which kernels have them.

Only bugs that are public, exploited and reachable without special hardware are listed. Versions are
upstream's: a distribution may carry a fix under an older number, so a hit is a question, not a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Version = tuple[int, int, int]
Series = tuple[int, int]

_NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_DEBIAN = re.compile(r"\bDebian (\d+\.\d+\.\d+)")
_UBUNTU_RELEASE = re.compile(r"(\d+)\.(\d+)\.0-(\d+)-")


@dataclass(frozen=True, slots=True)
class KernelBug:
    """A bug of mainline kernels from `since` up to, not including, `fixed`.

    `stable` gives, for each series that got the fix later, its first good patch level.
    """

    cve: str
    title: str
    since: Series
    fixed: Series
    stable: Mapping[Series, int]

    def affects(self, version: Version) -> bool:
        """Whether upstream's kernel of that version has the bug."""
        series = version[:2]
        if not self.since <= series < self.fixed:
            return False
        first_good = self.stable.get(series)
        return first_good is None or version[2] < first_good


KERNEL_BUGS: Sequence[KernelBug] = (
    KernelBug(
        "CVE-2016-5195",
        "Dirty COW",
        (2, 6),
        (4, 9),
        {(4, 4): 26, (4, 7): 9, (4, 8): 3},
    ),
    KernelBug(
        "CVE-2021-22555",
        "netfilter out-of-bounds write",
        (2, 6),
        (5, 12),
        {(5, 4): 113, (5, 10): 31},
    ),
    KernelBug(
        "CVE-2021-33909",
        "Sequoia",
        (3, 16),
        (5, 14),
        {(5, 4): 134, (5, 10): 52, (5, 12): 19, (5, 13): 4},
    ),
    KernelBug(
        "CVE-2022-0185",
        "fsconfig heap overflow",
        (5, 1),
        (5, 17),
        {(5, 4): 173, (5, 10): 93, (5, 15): 16, (5, 16): 2},
    ),
    KernelBug(
        "CVE-2022-0492",
        "cgroup v1 release_agent",
        (2, 6),
        (5, 17),
        {(5, 4): 177, (5, 10): 97, (5, 15): 20, (5, 16): 6},
    ),
    KernelBug(
        "CVE-2022-0847",
        "Dirty Pipe",
        (5, 8),
        (5, 17),
        {(5, 10): 102, (5, 15): 25, (5, 16): 11},
    ),
    KernelBug(
        "CVE-2022-34918",
        "nf_tables heap overflow",
        (5, 8),
        (5, 19),
        {(5, 10): 130, (5, 15): 54, (5, 18): 11},
    ),
    KernelBug(
        "CVE-2022-2588",
        "cls_route use after free",
        (2, 6),
        (6, 0),
        {(5, 4): 211, (5, 10): 137, (5, 15): 61, (5, 18): 18, (5, 19): 2},
    ),
    KernelBug(
        "CVE-2023-0386",
        "overlayfs set-id copy-up",
        (5, 11),
        (6, 2),
        {(5, 15): 91, (6, 1): 9},
    ),
    KernelBug(
        "CVE-2023-32233",
        "nf_tables anonymous sets",
        (3, 13),
        (6, 4),
        {(5, 4): 243, (5, 10): 180, (5, 15): 111, (6, 1): 28, (6, 2): 15, (6, 3): 2},
    ),
    KernelBug(
        "CVE-2023-3269",
        "StackRot",
        (6, 1),
        (6, 5),
        {(6, 1): 37, (6, 3): 11, (6, 4): 1},
    ),
    KernelBug(
        "CVE-2024-1086",
        "nf_tables double free",
        (3, 15),
        (6, 8),
        {(5, 4): 269, (5, 10): 210, (5, 15): 149, (6, 1): 76, (6, 6): 15, (6, 7): 3},
    ),
    KernelBug(
        "CVE-2026-43284",
        "Dirty Frag",
        (4, 11),
        (7, 1),
        {
            (5, 10): 255,
            (5, 15): 205,
            (6, 1): 171,
            (6, 6): 138,
            (6, 12): 87,
            (6, 18): 28,
            (7, 0): 5,
        },
    ),
)

# Ubuntu let ordinary users mount overlayfs long before upstream did, without the check that makes it safe.
_UBUNTU_OVERLAYFS = "CVE-2021-3493"
_UBUNTU_OVERLAYFS_FIRST_GOOD: Mapping[Series, int] = {(4, 15): 142, (5, 4): 72, (5, 8): 50}


def parse_version(release: str) -> Version | None:
    """Return the three numbers at the start of a kernel release, or None."""
    match = _NUMBER.match(release)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def upstream_version(release: str, build: str, signature: str) -> Version | None:
    """Return the upstream version behind a kernel.

    Debian and Ubuntu always say `x.y.0` in the release; the real number stands in /proc/version (`build`)
    and /proc/version_signature (`signature`).
    """
    if debian := _DEBIAN.search(build):
        return parse_version(debian[1])
    if signature.startswith("Ubuntu "):
        return parse_version(signature.split()[-1])
    return parse_version(release)


def known_bugs(release: str, build: str = "", signature: str = "") -> Sequence[str]:
    """Return the listed bugs that this kernel has, if its version tells the truth."""
    version = upstream_version(release, build, signature)
    if version is None:
        return []
    bugs = [f"{bug.cve} ({bug.title})" for bug in KERNEL_BUGS if bug.affects(version)]
    if "Ubuntu" in build + signature and _has_ubuntu_overlayfs_bug(release):
        bugs.append(f"{_UBUNTU_OVERLAYFS} (overlayfs in Ubuntu)")
    return bugs


def _has_ubuntu_overlayfs_bug(release: str) -> bool:
    match = _UBUNTU_RELEASE.match(release)
    if match is None:
        return False
    first_good = _UBUNTU_OVERLAYFS_FIRST_GOOD.get((int(match[1]), int(match[2])))
    return first_good is not None and int(match[3]) < first_good
