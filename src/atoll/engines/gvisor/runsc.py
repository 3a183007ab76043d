"""The `runsc` of this machine: where it is, which version, and how it is called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll.errors import Unavailable

# Best first; what a version offers, and what of that works here, is found out.
PLATFORMS = ("systrap", "kvm", "ptrace")
_ASK_SECONDS = 20.0
_VERSION = re.compile(r"^runsc version (\S+)", re.MULTILINE)
_FLAG = re.compile(r"^\s+-(\S+)", re.MULTILINE)
# Said wherever a version knows it: what is the default in one may not be in another.
_FIXED = {
    "log": os.devnull,
    "network": "none",
    "ignore-cgroups": "true",  # the cgroup round it is ours
    "oci-seccomp": "true",
    "overlay2": "none",
    "directfs": "false",  # files only by way of the gofer, never by descriptors in the second kernel
    "host-uds": "none",
    "host-fifo": "none",
    "net-raw": "false",
    "file-access": "exclusive",
    "debug": "false",
    "TESTONLY-unsafe-nonroot": "false",
}
# A version without these cannot be told what matters.
_NEEDED = ("root", "network", "platform", "ignore-cgroups", "oci-seccomp")


@dataclass(frozen=True, slots=True)
class Runsc:
    """A program with its version, the flags that it knows, and the platform to run on."""

    path: str
    version: str
    flags: frozenset[str]
    platforms: tuple[str, ...]  # that the version offers, best first
    platform: str = ""
    is_rootless: bool = False

    def command(self, state: Path, *, is_shared: bool) -> Sequence[str]:
        """Return the program with its flags, before the verb."""
        wanted = {
            **_FIXED,
            "root": str(state),
            "platform": self.platform,
            "file-access-mounts": "shared" if is_shared else "exclusive",
            "rootless": "true" if self.is_rootless else "false",
        }
        return [
            self.path,
            *(f"--{name}={value}" for name, value in wanted.items() if name in self.flags),
        ]


def find_runsc(program: str) -> Runsc:
    """Return what goes by that name or path; raise `Unavailable` where there is none that can be used."""
    path = shutil.which(program)
    if path is None:
        raise Unavailable(
            f"there is no {program!r} on this machine; install gVisor (for example: apt-get install runsc),"
            " or ask for another engine",
            program=program,
        )
    path = os.path.realpath(path)
    flags = parse_flags(_ask(path, "flags"))
    missing = [name for name in _NEEDED if name not in flags]
    if missing:
        raise Unavailable(f"{path} knows no {', '.join(missing)}; install a newer gVisor")
    return Runsc(
        path,
        parse_version(_ask(path, "--version")),
        flags,
        parse_platforms(_ask(path, "help", "platforms")),
        is_rootless=os.geteuid() != 0,
    )


def parse_version(text: str) -> str:
    """Return the version that `runsc --version` tells."""
    match = _VERSION.search(text)
    return match[1] if match else "unknown"


def parse_flags(text: str) -> frozenset[str]:
    """Return the names of the flags that `runsc flags` lists."""
    return frozenset(_FLAG.findall(text))


def parse_platforms(text: str) -> tuple[str, ...]:
    """Return what `runsc help platforms` lists, best first."""
    offered = set(text.split())
    return tuple(name for name in PLATFORMS if name in offered)


def _ask(path: str, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_SECONDS,
            check=False,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{path} cannot be run: {error}") from error
    return (done.stdout + done.stderr).decode("utf-8", "replace")
