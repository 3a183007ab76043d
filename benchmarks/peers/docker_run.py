"""`docker run`: a new container for each run."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from benchmarks.docker_engine import LIMITS
from benchmarks.peers.peer import CODE, time_program
from benchmarks.places import must_run
from benchmarks.workshop import Workshop


class DockerRun:
    """Runs one program in a container; its removal is not timed unless `auto_remove`."""

    name = "docker run"

    def __init__(self, workshop: Workshop, *, auto_remove: bool = False) -> None:
        self._workshop = workshop
        self._auto_remove = auto_remove

    def prepare(self) -> Mapping[str, str]:
        self._docker = self._workshop.docker()
        return self._docker.versions

    def run_once(self) -> float:
        docker, container = self._docker, f"bench-{secrets.token_hex(4)}"
        options = ["--rm"] if self._auto_remove else ["--name", container]
        program = [docker.image, "python3", "-I", "-c", CODE]
        seconds = time_program(
            docker.command("run", *options, "--network", "none", *LIMITS, *program)
        )
        if not self._auto_remove:
            must_run(docker.command("rm", "--force", container))
        return seconds

    def close(self) -> None:
        pass
