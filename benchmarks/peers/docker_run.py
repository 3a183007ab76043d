"""`docker run`: a new container for each run."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from benchmarks.docker_engine import LIMITS
from benchmarks.environments import site_packages, versions_in
from benchmarks.peers.peer import Task, time_program
from benchmarks.workshop import Workshop
from tools.places import must_run

_USUAL = Task()


class DockerRun:
    """Runs one program in a container; its removal is not timed unless `auto_remove`."""

    name = "docker run"

    def __init__(
        self,
        workshop: Workshop,
        *,
        auto_remove: bool = False,
        task: Task = _USUAL,
        packages: Sequence[str] = (),
    ) -> None:
        self._workshop = workshop
        self._auto_remove = auto_remove
        self._task = task
        self._packages = packages

    def prepare(self) -> Mapping[str, str]:
        self._docker = self._workshop.docker()
        self._image = self._docker.image
        if not self._packages:
            return self._docker.versions
        python = self._workshop.environment("packages", self._packages)
        self._image = self._docker.add_to_image(site_packages(python), python.parents[1].name)
        return {**self._docker.versions, **versions_in(python, self._packages)}

    def run_once(self) -> float:
        docker, container = self._docker, f"bench-{secrets.token_hex(4)}"
        options = ["--rm"] if self._auto_remove else ["--name", container]
        program = [self._image, "python3", "-I", "-c", self._task.code]
        seconds = time_program(
            docker.command("run", *options, "--network", "none", *LIMITS, *program),
            expected=self._task.answer,
        )
        if not self._auto_remove:
            must_run(docker.command("rm", "--force", container))
        return seconds

    def close(self) -> None:
        pass
