"""`runsc run`: gVisor without a container engine, on the common root tree."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.peer import CODE, time_program
from benchmarks.workshop import Workshop
from tools.container_daemons import RUNSC_PLATFORM
from tools.places import must_run
from tools.system_packages import RUNSC


class RunscRun:
    """Runs a container of its own for each run."""

    name = "runsc run"

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    def prepare(self) -> Mapping[str, str]:
        self._workshop.install(RUNSC)
        tree = self._workshop.root_tree().directory
        self._bundle = self._workshop.scratch("runsc-bundle")
        state = self._workshop.scratch("runsc-state")
        (self._bundle / "config.json").write_text(json.dumps(_bundle_for(tree)))
        self._runsc = [
            "runsc",
            "--root",
            str(state),
            "--platform",
            RUNSC_PLATFORM,
            "--network",
            "none",
        ]
        version = must_run(["runsc", "--version"]).decode().split("\n")[0].split()[-1]
        return {"runsc": f"{version} ({RUNSC_PLATFORM})"}

    def run_once(self) -> float:
        name = f"bench-{secrets.token_hex(4)}"
        return time_program([*self._runsc, "run", "--bundle", str(self._bundle), name], timeout=60)

    def close(self) -> None:
        pass


def _bundle_for(tree: Path) -> dict[str, object]:
    namespaces = ["pid", "network", "ipc", "uts", "mount"]
    return {
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": 65534, "gid": 65534},
            "args": ["python3", "-I", "-c", CODE],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": str(tree), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
        ],
        "linux": {"namespaces": [{"type": kind} for kind in namespaces]},
    }
