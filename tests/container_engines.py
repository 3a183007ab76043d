"""Docker and Podman daemons that the tests start themselves, as fixtures, with images made here.

One daemon of each kind serves a whole run. Only root can have them: a test that uses one of the fixtures
is marked `root_only` and has time for the first run's making of images. Where a fixture asks for them by
name only (`request.getfixturevalue`), its params carry `CONTAINER_MARKS`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tools.container_daemons import (
    BtrfsDockerDaemon,
    ContainerDaemon,
    DockerDaemon,
    MappingDockerDaemon,
    PodmanDaemon,
)

Daemon = TypeVar("Daemon", bound=ContainerDaemon)

_FIRST_RUN_SECONDS = 900

CONTAINER_MARKS = (
    pytest.mark.root_only,
    pytest.mark.containers,
    pytest.mark.timeout(_FIRST_RUN_SECONDS),
)
CONTAINER_FIXTURES = frozenset(
    {
        "docker_daemon",
        "btrfs_docker_daemon",
        "mapping_docker_daemon",
        "podman_daemon",
        "container_daemon",
    }
)


@pytest.fixture(scope="session")
def docker_daemon() -> Iterator[DockerDaemon]:
    """A Docker daemon."""
    yield from _run(DockerDaemon, "dockerd", "docker.io")


@pytest.fixture(scope="session")
def btrfs_docker_daemon() -> Iterator[BtrfsDockerDaemon]:
    """A Docker daemon that can hold roots to a size."""
    if shutil.which("mkfs.btrfs") is None or "btrfs" not in Path("/proc/filesystems").read_text():
        pytest.skip("there is no btrfs: apt-get install btrfs-progs, with a kernel that has it")
    yield from _run(BtrfsDockerDaemon, "dockerd", "docker.io")


@pytest.fixture(scope="session")
def mapping_docker_daemon() -> Iterator[MappingDockerDaemon]:
    """A Docker daemon with `userns-remap`."""
    yield from _run(MappingDockerDaemon, "dockerd", "docker.io")


@pytest.fixture(scope="session")
def podman_daemon() -> Iterator[PodmanDaemon]:
    """A Podman service."""
    yield from _run(PodmanDaemon, "podman", "podman")


@pytest.fixture(scope="session", params=["docker", "podman"])
def container_daemon(request: pytest.FixtureRequest) -> ContainerDaemon:
    """Each of the two in turn."""
    daemon: ContainerDaemon = request.getfixturevalue(f"{request.param}_daemon")
    return daemon


def _run(kind: type[Daemon], program: str, package: str) -> Iterator[Daemon]:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}: apt-get install {package}")
    with kind.running() as daemon:
        yield daemon


def mark_container_tests(items: list[pytest.Item]) -> None:
    """Give the tests that use a daemon the marks they need."""
    for item in items:
        if isinstance(item, pytest.Function) and CONTAINER_FIXTURES & {*item.fixturenames}:
            for mark in CONTAINER_MARKS:
                if not item.get_closest_marker(mark.name):
                    item.add_marker(mark)


@contextmanager
def leaving_nothing(daemon: ContainerDaemon) -> Iterator[None]:
    """Check that a daemon has no more containers, volumes and networks at the end than it had."""
    before = daemon.holdings()
    yield
    left = daemon.holdings().growth(before)
    assert left == {}, left
