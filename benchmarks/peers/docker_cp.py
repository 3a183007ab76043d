"""`docker cp`: a tree of files into a running container and out again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.peer import time_program
from benchmarks.trees import check_same, new_folder
from benchmarks.workshop import Workshop
from tools.places import must_run


class DockerCp:
    """Copies one folder in and out per run; what came out is compared, untimed."""

    name = "docker cp"

    def __init__(self, workshop: Workshop, source: Path, target: Path) -> None:
        self._workshop = workshop
        self._source = source
        self._target = target
        self._container: str | None = None

    def prepare(self) -> Mapping[str, str]:
        self._docker = self._workshop.docker()
        self._container = self._docker.start_container()
        return self._docker.versions

    def run_once(self) -> float:
        inside = f"{self._container}:/srv/files"
        must_run(self._docker.command("exec", str(self._container), "rm", "-rf", "/srv/files"))
        new_folder(self._target)
        seconds = time_program(
            self._docker.command("cp", f"{self._source}/.", inside), expected=None
        )
        seconds += time_program(
            self._docker.command("cp", f"{inside}/.", str(self._target)), expected=None
        )
        check_same(self._source, self._target)
        return seconds

    def close(self) -> None:
        if self._container is not None:
            must_run(self._docker.command("rm", "--force", self._container))
            self._container = None
