"""`ipykernel start` in `density`: live IPython kernels, what one more of them costs, and a cell among them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.memory import SandboxMemory, charged_bytes, private_bytes
from benchmarks.peers.driven import DrivenProgram
from benchmarks.peers.jupyter import start_jupyter
from benchmarks.workshop import Workshop

# The first ones also pay for what all share, such as files that were not in memory yet.
FIRST_KERNELS = 2
KERNELS = 8


class IdleKernels:
    """Keeps kernels alive in a memory cgroup, where there can be one, and asks one after the other."""

    name = "ipykernel start"

    def __init__(self, workshop: Workshop, cgroup: Path | None) -> None:
        self._workshop = workshop
        self._cgroup = cgroup
        self._program: DrivenProgram | None = None
        self.memory: SandboxMemory | None = None

    def prepare(self) -> Mapping[str, str]:
        self._program, versions = start_jupyter(self._workshop)
        if self._cgroup is not None:
            (self._cgroup / "cgroup.procs").write_text(str(self._program.pid))
        self._program.order(f"open {FIRST_KERNELS}")
        before = self._charged()
        pids = self._program.order(f"open {KERNELS}")["pids"][FIRST_KERNELS:]
        after = self._charged()
        charged = None if before is None or after is None else after - before
        self.memory = SandboxMemory.of(KERNELS, private_bytes(pids), charged)
        return versions

    def _charged(self) -> int | None:
        return None if self._cgroup is None else charged_bytes(self._cgroup)

    def run_once(self) -> float:
        assert self._program is not None
        return self._program.seconds("execute")

    def close(self) -> None:
        if self._program is not None:
            self._program.close()
            self._program = None
