"""What this machine gives the namespaces engine."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from atoll.engines.cgroups.layout import detect
from atoll.engines.cgroups.trees import open_tree
from atoll.engines.contract import Check
from atoll.engines.namespaces import mounts
from atoll.engines.namespaces.boot import boot, spawn_request
from atoll.engines.namespaces.keeper import OwnedKeeper
from atoll.engines.namespaces.seccomp import filter_for
from atoll.engines.namespaces.zygotes import ZygoteAge
from atoll.engines.workspace_images import missing_for_images
from atoll.errors import AtollError, Unavailable
from atoll.model.sandbox import SandboxSpec

_OLDEST_KERNEL = (5, 12)
# Nobody's, and none of those that sandboxes get.
_TRIAL_ID = 65533


def run(binaries: Path) -> Sequence[Check]:
    """Return every check; the engine works if all required ones are ok."""
    return [
        check_kernel(platform.release()),
        check_machine(platform.machine()),
        check_programs(binaries),
        check_sandbox(lambda: _try_sandbox(binaries)),
        check_cgroups(_describe_cgroups),
        check_images(missing_for_images()),
    ]


def check_kernel(release: str) -> Check:
    """The kernel has the mount and process calls that the engine uses."""
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    oldest = ".".join(map(str, _OLDEST_KERNEL))
    return Check(
        "kernel", version >= _OLDEST_KERNEL, release, f"boot a kernel of at least {oldest}"
    )


def check_machine(machine: str) -> Check:
    """There is a system-call list for this machine."""
    try:
        filter_for(machine)
    except AtollError as error:
        return Check("machine", False, machine, error.message)
    return Check("machine", True, machine)


def check_programs(binaries: Path) -> Check:
    """The native programs were built."""
    programs = ("keeper", "init", "copier")
    missing = [name for name in programs if not os.access(binaries / name, os.X_OK)]
    found = f"missing: {', '.join(missing)}" if missing else ", ".join(programs)
    return Check(
        "native programs", not missing, found, "install the package again with a C compiler present"
    )


def check_sandbox(attempt: Callable[[], None]) -> Check:
    """A sandbox can be made: user namespaces, mounts and /proc are there for this user."""
    try:
        attempt()
    except Unavailable as error:
        return Check("sandbox", False, error.message, _sandbox_fix(error))
    return Check("sandbox", True, "one was made and removed again")


def _sandbox_fix(error: Unavailable) -> str:
    step = error.details.get("step")
    # Where AppArmor restricts them there is a namespace, but without the rights over it that the next step needs.
    if step in ("jail_user_namespace", "clone", "loopback"):
        return (
            "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0,"
            " kernel.apparmor_restrict_unprivileged_userns=0"
        )
    if step == "jail_proc":
        return "make /proc wholly visible: inside a container run it with unmasked /proc, e.g. --security-opt systempaths=unconfined"
    return "start Atoll as root, or outside of a container"


def check_cgroups(describe: Callable[[], str]) -> Check:
    """Limits of memory, processes and cpu are enforced by the kernel."""
    try:
        return Check("cgroup limits", True, describe(), required=False)
    except Unavailable as error:
        fix = "start Atoll as root, or in a delegated cgroup (systemd-run --user --scope -p Delegate=yes)"
        return Check("cgroup limits", False, error.message, fix, required=False)


def check_images(missing: Sequence[str]) -> Check:
    """Workspaces that are kept are held to their size by the kernel."""
    if not missing:
        return Check(
            "workspace sizes",
            True,
            "in memory: tmpfs of that size; kept: an ext4 image on a loop device each",
            required=False,
        )
    found = f"missing for images: {', '.join(missing)}; folders are measured instead"
    fix = "start Atoll as root with e2fsprogs and loop devices, or accept sizes that are watched"
    return Check("workspace sizes", False, found, fix, required=False)


def _try_sandbox(binaries: Path) -> None:
    rootless = os.geteuid() != 0
    spec, host_id = SandboxSpec(), 0 if rootless else _TRIAL_ID
    template = mounts.base_template(binaries / "init")
    with ExitStack() as undo:
        keeper = OwnedKeeper(binaries / "keeper", rootless=rootless)
        undo.callback(keeper.end)
        jail = keeper.make_jail(template, host_id, age=ZygoteAge())
        undo.callback(jail.close)
        jail.load_filter(filter_for())
        request = spawn_request(spec, spec.limits.resolve(), None, rootless=rootless)
        booted, _seen = boot(
            jail,
            request,
            [],
            host_id=host_id,
            cgroup=None,
            keep=lambda _init, _pidfd: None,
            look=lambda booted: None,
        )
        booted.end()


def _describe_cgroups() -> str:
    layout = detect()
    tree = open_tree(f"atoll-check-{os.getpid()}", layout)
    tree.remove()
    return f"{layout.name}: {', '.join(sorted(tree.controllers))}"
