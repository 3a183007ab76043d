"""`llm-sandbox`: a session of its own on the same Docker, opened and used once."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.environments import versions_in
from benchmarks.peers.driven import DrivenProgram
from benchmarks.workshop import Workshop

REQUIREMENTS = ("llm-sandbox[docker]>=0.3.40",)


class LlmSandbox:
    """Opens a session for each run, without the environment that it would set up inside."""

    name = "llm-sandbox"

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._program: DrivenProgram | None = None

    def prepare(self) -> Mapping[str, str]:
        docker = self._workshop.docker()
        python = self._workshop.environment("llm-sandbox", REQUIREMENTS)
        arguments = [str(docker.socket), docker.image]
        self._program = DrivenProgram(python, "llm_sandbox_session", arguments)
        return {**docker.versions, **versions_in(python, ["llm-sandbox"])}

    def run_once(self) -> float:
        assert self._program is not None
        return self._program.seconds("run")

    def close(self) -> None:
        if self._program is not None:
            self._program.close()
            self._program = None
