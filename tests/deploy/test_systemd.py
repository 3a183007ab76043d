"""The systemd unit, on a machine of the tests' own: a container in which systemd is process 1."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.docker import Docker, wait_until

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
MACHINE = Path(__file__).parent / "machine.sh"
LEASE_SECONDS = 600  # a busy machine may take long to start a server again
SHORT_LEASE_SECONDS = 1
# As much as systemd needs of what this container's own walls would refuse.
AS_A_MACHINE = (
    "--network=none",
    "--cgroupns=private",
    "--cap-add=SYS_ADMIN",
    "--security-opt=seccomp=unconfined",
    "--security-opt=systempaths=unconfined",
    "--tmpfs=/run",
    "--env=container=docker",
    "--user=0",
)


class Machine:
    """One container."""

    def __init__(self, docker: Docker, name: str, settings: Path) -> None:
        self._docker = docker
        self._name = name
        self._settings = settings

    def set_lease(self, seconds: int) -> None:
        """Write the server's settings; the next one reads them."""
        self._settings.write_text(f"[node]\nlease_seconds = {seconds}\n")

    def __call__(self, *words: str, may_fail: bool = False) -> str:
        """Run a command as root."""
        return self._docker("exec", self._name, *words, may_fail=may_fail)

    def atoll(self, *words: str, may_fail: bool = False) -> str:
        """Run a command of Atoll's as the user that the server runs as."""
        options = ("--user=atoll", "--env=ATOLL_DATA=/var/lib/atoll", self._name)
        return self._docker("exec", *options, "/opt/atoll/bin/atoll", *words, may_fail=may_fail)

    def fact(self, name: str) -> str:
        """Return what systemd says of the unit."""
        return self("systemctl", "show", "--value", "--property", name, "atoll").strip()

    def wait_ready(self) -> None:
        """Wait until the server answers."""
        self.wait(lambda: '"ok"' in self.ask("/health"))

    def wait(self, is_so: Callable[[], bool]) -> None:
        """Wait for something; its journal tells why it did not come."""
        wait_until(is_so, lambda: self("journalctl", "--no-pager", "--unit=atoll", may_fail=True))

    def ask(self, path: str) -> str:
        """Return the server's answer, or nothing."""
        program = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000{path}').read().decode())"
        return self("/opt/atoll/bin/python", "-c", program, may_fail=True)


@pytest.fixture(scope="module")
def machine(
    docker: Docker, server_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """A machine on which Atoll was installed as docs/deployment.md says."""
    settings = tmp_path_factory.mktemp("etc") / "atoll.toml"
    settings.touch()
    files = {
        MACHINE: "/machine.sh",
        DEPLOY / "atoll.service": "/etc/systemd/system/atoll.service",
        DEPLOY / "atoll.sysusers": "/etc/sysusers.d/atoll.conf",
        settings: "/etc/atoll/atoll.toml",
    }
    mounts = [f"--volume={source}:{target}:ro" for source, target in files.items()]
    words = (*AS_A_MACHINE, *mounts, "--entrypoint=sh", server_image, "/machine.sh")
    with docker.container(*words) as name:
        machine = Machine(docker, name, settings)
        machine.set_lease(LEASE_SECONDS)
        machine.wait(lambda: "running" in machine("systemctl", "is-system-running", may_fail=True))
        machine("systemctl", "enable", "--now", "atoll")
        machine.wait_ready()
        yield machine


def test_the_server_has_no_privileges(machine: Machine) -> None:
    status = machine("cat", f"/proc/{machine.fact('MainPID')}/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in fields["Uid"].split()
    assert int(fields["CapBnd"], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    folder = machine("stat", "--format=%U %a", "/var/lib/atoll")
    assert folder == "atoll 700\n"
    own = machine("stat", "--format=%U", f"/sys/fs/cgroup{machine.fact('ControlGroup')}")
    assert own == "atoll\n"  # delegated


def test_systemd_finds_nothing_wrong_with_the_unit(machine: Machine) -> None:
    # Older ones do not know a setting, say so and go on.
    machine("systemd-analyze", "verify", "/etc/systemd/system/atoll.service")
    told = machine("systemd-analyze", "--no-pager", "security", "atoll")
    exposure = re.search(r"Overall exposure level for atoll\.service: ([\d.]+)", told)
    assert exposure is not None and float(exposure[1]) < 5


def test_sandboxes_outlive_a_restart_and_a_crash(machine: Machine) -> None:
    machine.atoll("create", "--name", "lagoon")
    told = machine.atoll("exec", "lagoon", "--", "sh", "-c", "id -u; echo 42 > answer")
    assert told == "65532\n"
    first = machine.fact("MainPID")
    machine("systemctl", "restart", "atoll")
    machine.wait_ready()
    assert machine.fact("MainPID") != first
    assert machine.atoll("exec", "lagoon", "--", "cat", "answer") == "42\n"
    second = machine.fact("MainPID")
    machine("kill", "-KILL", second)
    machine.wait(lambda: machine.fact("MainPID") not in (second, "0"))
    machine.wait_ready()
    assert machine.atoll("exec", "lagoon", "--", "cat", "answer") == "42\n"


def test_a_server_that_does_not_come_back_leaves_nothing(machine: Machine) -> None:
    machine("systemctl", "stop", "atoll")
    machine("pkill", "--signal=KILL", "--uid=atoll", may_fail=True)
    machine.set_lease(SHORT_LEASE_SECONDS)
    machine("systemctl", "start", "atoll")
    machine.wait_ready()
    machine.atoll("create", "--name", "reef")
    machine("systemctl", "stop", "atoll")
    assert machine.fact("ActiveState") == "inactive"
    machine.wait(lambda: not machine("pgrep", "--uid=atoll", may_fail=True))
    machine("systemctl", "start", "atoll")
    machine.wait_ready()
    assert "reef" not in machine.atoll("ls")
