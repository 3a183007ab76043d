"""`bwrap python`: bubblewrap with every namespace, on the common root tree."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peers.peer import CODE, time_program
from benchmarks.workshop import Workshop
from tools.places import must_run
from tools.system_packages import BUBBLEWRAP

_WALLS = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv")


class BwrapPython:
    """Starts a Python under bubblewrap for each run; no limits and no filter, it has neither built in."""

    name = "bwrap python"

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    def prepare(self) -> Mapping[str, str]:
        self._workshop.install(BUBBLEWRAP)
        tree = self._workshop.root_tree().directory
        self._command = ["bwrap", *_WALLS, "--setenv", "PATH", "/usr/bin:/bin"]
        self._command += ["--ro-bind", str(tree), "/", "--proc", "/proc", "--dev", "/dev"]
        self._command += ["--tmpfs", "/tmp", "python3", "-I", "-c", CODE]
        return {"bubblewrap": must_run(["bwrap", "--version"]).decode().split()[-1]}

    def run_once(self) -> float:
        return time_program(self._command)

    def close(self) -> None:
        pass
