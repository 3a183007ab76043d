"""The daemons of the tests: every runtime runs containers, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.container_engines import CONTAINER_MARKS, leaving_nothing
from tests.host_state import descendants, eventually, parent_of
from tools.container_daemons import ContainerDaemon, DockerDaemon, PodmanDaemon
from tools.container_images import BARE, BARE_PROGRAM, import_image

ON_A_DAEMON_OF_ITS_OWN = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=CONTAINER_MARKS) for kind in (DockerDaemon, PodmanDaemon)]
)
PRINT_KERNEL = "import os; print(os.uname().release)"


@pytest.mark.parametrize("runtime", ["runc", "crun", "runsc"])
def test_docker_runs_containers_with_each_runtime(
    docker_daemon: DockerDaemon, runtime: str
) -> None:
    if runtime not in docker_daemon.runtimes:
        pytest.skip(f"there is no {runtime}: apt-get install {runtime}")
    image = import_image(docker_daemon, "base")
    with leaving_nothing(docker_daemon):
        code, output = docker_daemon.run(image, "python3", "-c", PRINT_KERNEL, Runtime=runtime)
    assert code == 0
    # Only gVisor is a kernel of its own.
    assert (output.strip() == os.uname().release) == (runtime != "runsc")


def test_podman_runs_containers(podman_daemon: PodmanDaemon) -> None:
    image = import_image(podman_daemon, "base")
    with leaving_nothing(podman_daemon):
        code, output = podman_daemon.run(image, "python3", "-c", PRINT_KERNEL)
    assert (code, output.strip()) == (0, os.uname().release)


def test_the_bare_image_has_nothing_but_its_program(container_daemon: ContainerDaemon) -> None:
    image = import_image(container_daemon, BARE)
    with leaving_nothing(container_daemon):
        said = container_daemon.run(image, BARE_PROGRAM, "say", "hello", "there")
        code, _ = container_daemon.run(image, BARE_PROGRAM, "exit", "7")
    assert said == (0, "hello there\n")
    assert code == 7


def test_what_is_left_is_found_and_cleared(container_daemon: ContainerDaemon) -> None:
    before = container_daemon.holdings()
    image = import_image(container_daemon, BARE)
    container = make_idle_container(container_daemon, image)
    container_daemon.call("POST", "/volumes/create", {"Name": "left"})
    grown = {"containers": [container], "volumes": ["left"]}
    assert container_daemon.holdings().growth(before) == grown
    container_daemon.clear()
    assert container_daemon.holdings().growth(before) == {}


@ON_A_DAEMON_OF_ITS_OWN
def test_its_end_leaves_nothing(kind: type[ContainerDaemon]) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    with kind.running() as daemon:
        image = import_image(daemon, BARE)
        container = start_idle_container(daemon, image)
        inside = processes_below(daemon)
        assert len(inside) > 1
        assert cgroups_of(container)
    assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]
    assert not cgroups_of(container)
    assert Path("/proc/self/mountinfo").read_text() == mounts


@ON_A_DAEMON_OF_ITS_OWN
def test_it_ends_with_a_run_that_is_killed(kind: type[ContainerDaemon]) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED_RUN.format(kind=kind.__name__)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        assert run.stdout is not None
        container, *inside = run.stdout.readline().split()
        assert len(inside) > 1
        run.kill()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside), 60)
    assert eventually(lambda: not cgroups_of(container), 10)


@ON_A_DAEMON_OF_ITS_OWN
def test_one_that_was_killed_or_hangs_can_go_on(kind: type[ContainerDaemon]) -> None:
    with kind.running() as daemon:
        image = import_image(daemon, BARE)
        start_idle_container(daemon, image)
        held = daemon.holdings()
        os.kill(daemon.pid, signal.SIGKILL)
        daemon.start()
        assert daemon.holdings() == held
        os.kill(daemon.pid, signal.SIGSTOP)
        began = time.monotonic()
    assert time.monotonic() - began < 60


KILLED_RUN = """
import signal
from tests.test_container_engines import *

with {kind}.running() as daemon:
    container = start_idle_container(daemon, import_image(daemon, BARE))
    print(container, *processes_below(daemon), flush=True)
    signal.pause()
"""


def make_idle_container(daemon: ContainerDaemon, image: str) -> str:
    """Return the id of a container that would do nothing."""
    limits = [{"Name": name, "Soft": 1024, "Hard": 1024} for name in ("nofile", "nproc")]
    host = {"NetworkMode": "none", "Ulimits": limits}
    options = {"Image": image, "Cmd": [BARE_PROGRAM, "wait"], "HostConfig": host}
    container: str = daemon.call("POST", "/containers/create", options)["Id"]
    return container


def start_idle_container(daemon: ContainerDaemon, image: str) -> str:
    container = make_idle_container(daemon, image)
    daemon.call("POST", f"/containers/{container}/start")
    return container


def processes_below(daemon: ContainerDaemon) -> list[int]:
    """Return the daemon, its monitors and its containers: whatever its guard is an ancestor of."""
    return descendants(parent_of(daemon.pid))


def cgroups_of(container: str) -> list[Path]:
    # Unlike a glob, a walk does not mind what others remove meanwhile.
    directories = (Path(each) for each, _, _ in os.walk("/sys/fs/cgroup"))
    return [each for each in directories if container in each.name]
