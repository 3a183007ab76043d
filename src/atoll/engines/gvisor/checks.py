"""What this machine gives the gVisor engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from atoll.engines.cgroups.layout import detect
from atoll.engines.cgroups.trees import open_tree
from atoll.engines.contract import Check
from atoll.engines.gvisor.launch import LAUNCHER
from atoll.engines.gvisor.parts import prepare_place
from atoll.engines.gvisor.platforms import choose_platform
from atoll.engines.gvisor.runsc import Runsc, find_runsc
from atoll.engines.steward import STEWARD
from atoll.errors import Unavailable


def run(program: str, platform: str | None, data_dir: Path) -> Sequence[Check]:
    """Return every check; the engine works if all required ones are ok."""
    try:
        runsc = find_runsc(program)
    except Unavailable as error:
        fix = "install gVisor, for example with: apt-get install runsc"
        return [Check("runsc", False, error.message, fix)]
    return [
        Check("runsc", True, f"{runsc.path}, version {runsc.version}"),
        check_programs(LAUNCHER, STEWARD),
        check_platform(lambda: choose_platform(runsc, prepare_place(data_dir), platform)),
        check_cgroups(_describe_cgroups),
    ]


def check_programs(*programs: Path) -> Check:
    """The native programs were built."""
    missing = [path.name for path in programs if not os.access(path, os.X_OK)]
    found = f"missing: {', '.join(missing)}" if missing else ", ".join(p.name for p in programs)
    fix = "install the package again with a C compiler present"
    return Check("native programs", not missing, found, fix)


def check_platform(choose: Callable[[], Runsc]) -> Check:
    """A sandbox comes up on one of the platforms that this `runsc` offers."""
    try:
        chosen = choose()
    except (Unavailable, OSError) as error:
        fix = "start Atoll as root, or allow user namespaces; inside a container allow ptrace"
        return Check("platform", False, str(error), fix)
    offered = ", ".join(chosen.platforms)
    return Check("platform", True, f"{chosen.platform} (of {offered}): one came up")


def check_cgroups(describe: Callable[[], str]) -> Check:
    """The kernel holds what `runsc` takes; gVisor itself would not."""
    try:
        return Check("cgroup limits", True, describe())
    except Unavailable as error:
        fix = "start Atoll as root, or in a delegated cgroup (systemd-run --user --scope -p Delegate=yes)"
        return Check("cgroup limits", False, error.message, fix)


def _describe_cgroups() -> str:
    layout = detect()
    tree = open_tree(f"atoll-check-{os.getpid()}", layout)
    tree.remove()
    return f"{layout.name}: {', '.join(sorted(tree.controllers))}"
