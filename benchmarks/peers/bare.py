"""`bare`: a program on this machine without any walls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.peer import time_program


class Bare:
    """Runs one command in one folder."""

    name = "bare"

    def __init__(self, argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self._argv = argv
        self._folder = folder
        self._env = env

    def prepare(self) -> Mapping[str, str]:
        return {}

    def run_once(self) -> float:
        return time_program(self._argv, expected=None, env=self._env, cwd=str(self._folder))

    def close(self) -> None:
        pass
