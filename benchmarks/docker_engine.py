"""The Docker that peers run in: a daemon of our own, with an image made from the root tree.

Only one user of it at a time; others wait at a file lock.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.root_tree import RootTree
from tools.container_daemons import DockerDaemon
from tools.places import locked, must_run, say

PROGRAM = "/usr/bin/docker"  # the package's: another one on PATH may be of another version

# The same as a sandbox of Atoll has by default.
LIMITS = ("--memory", "1g", "--memory-swap", "1g", "--cpus", "1", "--pids-limit", "256")


@dataclass(frozen=True, slots=True)
class DockerEngine:
    """A running daemon with one image, which has Python in it."""

    daemon: DockerDaemon
    image: str
    versions: Mapping[str, str]

    @property
    def socket(self) -> Path:
        """Return the path of the daemon's socket."""
        return self.daemon.socket

    def command(self, *arguments: str) -> list[str]:
        """Return the argument list of a docker command on this engine."""
        return [PROGRAM, "--host", self.daemon.url, *arguments]

    def add_to_image(self, packages: Path, label: str) -> str:
        """Return the name of an image that has these packages of Python besides, made on first use."""
        name = f"{self.image}-{label}"
        if self.daemon.has_image(name):
            return name
        say("making an image with packages")
        container = must_run(self.command("create", self.image, "true")).decode().strip()
        place = f"{container}:/usr/lib/python3/dist-packages"
        must_run(self.command("cp", f"{packages}/.", place))
        must_run(self.command("commit", container, name))
        must_run(self.command("rm", container))
        return name

    def start_container(self, *options: str) -> str:
        """Start a container that does nothing, with the usual limits, and return its name."""
        name = f"bench-{secrets.token_hex(4)}"
        idle = [self.image, "sleep", "infinity"]
        run = ["run", "--detach", "--init", "--name", name, "--network", "none"]
        must_run(self.command(*run, *LIMITS, *options, *idle))
        return name


@contextmanager
def docker_engine(place: Path, tree: RootTree) -> Iterator[DockerEngine]:
    """Run a daemon below `place` until the end; raise `Failed` if it does not come up.

    The docker.io package has to be there; `Workshop.docker` sees to that.
    """
    with locked(place / "docker.lock", "Docker") as lock:
        daemon = DockerDaemon(place, lock)
        daemon.start()
        try:
            image = daemon.import_image(tree.tarball, f"atoll-bench:{tree.digest}")
            yield DockerEngine(daemon, image, daemon.versions())
        finally:
            daemon.stop()
