"""`python3 -c`: a bare interpreter, no isolation at all."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.interpreter import ISOLATED, real_python, version_of
from benchmarks.peers.peer import CODE, time_program


class PythonC:
    """Starts the real interpreter for each run."""

    name = "python3 -c"

    def prepare(self) -> Mapping[str, str]:
        python = real_python()
        self._command = [str(python), *ISOLATED, "-c", CODE]
        return {"python3": version_of(python)}

    def run_once(self) -> float:
        return time_program(self._command)

    def close(self) -> None:
        pass
