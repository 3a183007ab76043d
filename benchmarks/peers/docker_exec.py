"""`docker exec`: one more program in a container that runs already."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peers.peer import CODE, time_program
from benchmarks.workshop import Workshop
from tools.places import must_run


class DockerExec:
    """Starts a Python in a warm container for each run."""

    name = "docker exec"

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._container: str | None = None

    def prepare(self) -> Mapping[str, str]:
        self._docker = self._workshop.docker()
        self._container = self._docker.start_container()
        return self._docker.versions

    def run_once(self) -> float:
        assert self._container is not None
        return time_program(
            self._docker.command("exec", self._container, "python3", "-I", "-c", CODE)
        )

    def close(self) -> None:
        if self._container is not None:
            must_run(self._docker.command("rm", "--force", self._container))
            self._container = None
