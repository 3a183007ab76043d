"""`ipykernel start`: a new IPython kernel over jupyter_client, and one cell."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peers.driven import DrivenProgram
from benchmarks.peers.jupyter import start_jupyter
from benchmarks.workshop import Workshop


class IpykernelStart:
    """Starts a kernel, without any isolation, for each run."""

    name = "ipykernel start"

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._program: DrivenProgram | None = None

    def prepare(self) -> Mapping[str, str]:
        self._program, versions = start_jupyter(self._workshop)
        return versions

    def run_once(self) -> float:
        assert self._program is not None
        return self._program.seconds("start")

    def close(self) -> None:
        if self._program is not None:
            self._program.close()
            self._program = None
