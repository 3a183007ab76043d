"""Where this process's cgroup controllers are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from atoll.engines.cgroups.delegation import find_parent
from atoll.engines.cgroups.files import read_words
from atoll.engines.cgroups.settings import NEEDED


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each controller is: v1 by directory, v2 by one directory for those it has."""

    v1: Mapping[str, Path]
    v2: Path | None
    v2_controllers: frozenset[str]

    def version_of(self, controller: str) -> int | None:
        """Return 1, 2 or None for a controller."""
        if controller in self.v1:
            return 1
        return 2 if controller in self.v2_controllers else None

    @property
    def name(self) -> str:
        """v1, v2, hybrid or none."""
        versions = {self.version_of(controller) for controller in NEEDED} - {None}
        if not versions:
            return "none"
        return (
            "hybrid" if len(versions) > 1 or (1 in versions and self.v2) else f"v{versions.pop()}"
        )

    def around(self, directories: Iterable[Path]) -> Layout:
        """Return it as a process sees it beside whose cgroups these directories are, at most one of each hierarchy."""
        parents = {_device(directory): directory.parent for directory in directories}
        if not parents:
            return self
        v1 = {each: parents.get(_device(own), own) for each, own in self.v1.items()}
        v2 = None if self.v2 is None else parents.get(_device(self.v2), self.v2)
        return Layout(v1, v2, _v2_controllers(v2))


def detect(proc: Path = Path("/proc")) -> Layout:
    """Return where this process's controllers are, from /proc/self."""
    return parse_layout((proc / "self/cgroup").read_text(), (proc / "self/mountinfo").read_text())


def parse_layout(membership: str, mountinfo: str) -> Layout:
    """Return the layout that /proc/self/cgroup and /proc/self/mountinfo describe."""
    paths = _parse_membership(membership)
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo.splitlines():
        fields, _, tail = line.partition(" - ")
        kind, _source, options = ([*tail.split(), "", "", ""])[:3]
        root, mount_point = fields.split()[3:5]
        if kind == "cgroup2" and v2 is None and "" in paths:
            v2 = _below(mount_point, root, paths[""])
        for controller in options.split(",") if kind == "cgroup" else ():
            if controller in paths:
                v1[controller] = _below(mount_point, root, paths[controller])
    return Layout(v1, v2, _v2_controllers(v2))


def _parse_membership(text: str) -> dict[str, str]:
    paths = {}
    for line in text.splitlines():
        _number, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _below(mount_point: str, root: str, path: str) -> Path:
    """Return the directory of cgroup `path` where the part below `root` is mounted."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return Path(mount_point, path.lstrip("/"))


def _device(directory: Path) -> int | None:
    """Return what tells hierarchies apart; None if there is no such directory."""
    with suppress(OSError):
        return directory.stat().st_dev
    return None


def _v2_controllers(own: Path | None) -> frozenset[str]:
    """Return what the engine could use: its place may have more than this process's own cgroup."""
    if own is None:
        return frozenset()
    return frozenset(read_words((find_parent(own) or own) / "cgroup.controllers"))
