"""`jupyter execute`: one more cell in a live IPython kernel over jupyter_client."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peers.driven import DrivenProgram
from benchmarks.peers.jupyter import start_jupyter
from benchmarks.workshop import Workshop


class JupyterExecute:
    """Keeps a kernel alive and asks it."""

    name = "jupyter execute"

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._program: DrivenProgram | None = None

    def prepare(self) -> Mapping[str, str]:
        self._program, versions = start_jupyter(self._workshop)
        self._program.order("open 1")
        return versions

    def run_once(self) -> float:
        assert self._program is not None
        return self._program.seconds("execute")

    def close(self) -> None:
        if self._program is not None:
            self._program.close()
            self._program = None
