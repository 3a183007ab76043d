"""Where this process's control groups are, and which of them it may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll.node.host import Host

CONTROLLERS = ("memory", "pids", "cpu", "freezer")


@dataclass(frozen=True, slots=True)
class CgroupView:
    """This process's own group: one directory per v1 controller, and one of v2."""

    v1: Mapping[str, str]
    v2: str | None
    v2_controllers: frozenset[str]

    @property
    def layout(self) -> str:
        """`v1`, `v2`, `hybrid` or `none`."""
        if self.v1:
            return "hybrid" if self.v2 else "v1"
        return "v2" if self.v2 else "none"

    def directory(self, controller: str) -> str | None:
        """Return the group that holds this process for `controller`, or None."""
        if controller in self.v1:
            return self.v1[controller]
        return self.v2 if controller in self.v2_controllers else None


def view_cgroups(host: Host) -> CgroupView:
    """Read mounts and memberships of this process."""
    memberships = _memberships(host)
    v1: dict[str, str] = {}
    v2 = None
    for line in host.lines("/proc/self/mountinfo"):
        fields, _, super_fields = line.partition(" - ")
        kind, _, options = super_fields.partition(" ")
        root, target = fields.split()[3:5]
        if kind == "cgroup2":
            v2 = _own(host, root, target, memberships.get("", "/"))
        elif kind == "cgroup":
            for name in CONTROLLERS:
                if name in options.split()[-1].split(","):
                    v1[name] = _own(host, root, target, memberships.get(name, "/"))
    return CgroupView(v1, v2, _v2_controllers(host, v2))


def _memberships(host: Host) -> Mapping[str, str]:
    """Map each controller to this process's group; the empty name is v2."""
    found = {}
    for line in host.lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            found[name] = path
    return found


def _own(host: Host, root: str, target: str, group: str) -> str:
    # In a container only a part of the hierarchy may be mounted: `root` is then the group at its top.
    below = group.removeprefix(root.rstrip("/")).strip("/")
    directory = f"{target}/{below}".rstrip("/")
    return directory if host.exists(directory) else target


def _v2_controllers(host: Host, directory: str | None) -> frozenset[str]:
    if directory is None:
        return frozenset()
    names = (host.text(f"{directory}/cgroup.controllers") or "").split()
    # Freezing has no controller in v2: every group can do it since Linux 5.2.
    return frozenset(names) | {"freezer"}
