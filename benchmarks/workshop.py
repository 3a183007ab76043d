"""What peers share: packages, root tree, Docker, environments; made on first use, put away at the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.docker_engine import DockerEngine, docker_engine
from benchmarks.environments import make_environment
from benchmarks.root_tree import RootTree, make_root_tree, place
from tools.places import Failed, must_run, own_folder
from tools.system_packages import DOCKER, MMDEBSTRAP, MissingPackages, SystemPackage, ensure

MEMORY = Path("/dev/shm")


class Workshop:
    """Opened once per benchmark. A part that failed is not tried again."""

    def __init__(self) -> None:
        self.place = place()
        _remove_leftovers(self.place)
        self._end = ExitStack()
        self._docker: DockerEngine | Failed | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.close()

    def install(self, *packages: SystemPackage) -> None:
        """See to it that these system packages are there; raise `Failed` if they cannot be."""
        try:
            ensure(packages, "this benchmark")
        except MissingPackages as error:
            raise Failed(str(error)) from error

    def root_tree(self) -> RootTree:
        """Return the tree that contained peers run on."""
        self.install(MMDEBSTRAP)
        return make_root_tree()

    def docker(self) -> DockerEngine:
        """Return the running Docker."""
        if self._docker is None:
            try:
                self.install(DOCKER)
                tree = self.root_tree()
                self._docker = self._end.enter_context(docker_engine(self.place, tree))
            except Failed as error:
                self._docker = error
        if isinstance(self._docker, Failed):
            raise self._docker
        return self._docker

    def environment(self, name: str, requirements: Sequence[str]) -> Path:
        """Return the interpreter of a peer's own environment."""
        return make_environment(self.place, name, requirements)

    def scratch(self, name: str) -> Path:
        """Return a new folder that is removed at the end, on the disk that holds everything else."""
        folder = self._scratch_below(self.place, "scratch-") / name
        folder.mkdir(exist_ok=True)
        return folder

    def memory_scratch(self, name: str) -> Path:
        """Return such a folder in memory, where no other program's writing to the disk is felt."""
        folder = self._scratch_below(MEMORY, f"{self.place.name}-") / name
        folder.mkdir(exist_ok=True)
        return folder

    def _scratch_below(self, parent: Path, prefix: str) -> Path:
        path = parent / f"{prefix}{os.getpid()}"
        if not path.exists():
            own_folder(path.name, parent)
            self._end.callback(must_run, ["rm", "-rf", "--", str(path)])
        return path


def _remove_leftovers(place: Path) -> None:
    """Remove the folders of runs that were killed; each carries the number of its process."""
    found = [*place.glob("scratch-*"), *place.glob("data-*"), *MEMORY.glob(f"{place.name}-*")]
    for folder in found:
        if not Path("/proc", folder.name.rpartition("-")[2]).exists():
            must_run(["rm", "-rf", "--", str(folder)])
