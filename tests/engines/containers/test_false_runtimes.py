"""An engine whose `runsc` is not what the name promises: a container that it runs is never handed over."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atoll.engines.containers.engine import ContainerEngine
from atoll.errors import Unavailable
from atoll.model.sandbox import SandboxSpec
from tests.container_engines import CONTAINER_MARKS, leaving_nothing
from tests.engine_fixtures import container_settings
from tools.container_daemons import RUNSC_PLATFORM, ContainerDaemon, DockerDaemon, PodmanDaemon

pytestmark = [*CONTAINER_MARKS]

# It runs all that is meant for gVisor with the host's kernel; a limit that not every root may raise is left out.
RUNC = """#!/bin/sh
for word; do
    [ "$before" != --bundle ] || sed -i s/RLIMIT_MEMLOCK/RLIMIT_RSS/ "$word/config.json"
    before=$word
done
PATH=/usr/sbin:/usr/bin:/sbin:/bin exec runc "$@"
"""


@pytest.fixture
def runc(tmp_path: Path) -> Path:
    """What an engine calls runsc."""
    if shutil.which("runc", path=f"/usr/sbin:{os.environ['PATH']}") is None:
        pytest.skip("there is no runc: apt-get install runc")
    path = tmp_path / "runc"
    path.write_text(RUNC)
    path.chmod(0o755)
    return path


def lying_docker(runtime: Mapping[str, Any]) -> type[DockerDaemon]:
    class Daemon(DockerDaemon):
        def _configure(self) -> tuple[list[str], dict[str, str]]:
            configured = super()._configure()
            text = json.dumps({"runtimes": {"runsc": dict(runtime)}})
            (self.place / "dockerd.json").write_text(text)
            return configured

    return Daemon


def lying_podman(runtime: Path) -> type[PodmanDaemon]:
    class Daemon(PodmanDaemon):
        def _configure(self) -> tuple[list[str], dict[str, str]]:
            configured = super()._configure()
            path = self.place / "containers.conf"
            lines = path.read_text().splitlines()
            lines = [line for line in lines if not line.startswith(("runsc =", "runtime ="))]
            lines.insert(lines.index("[engine]") + 1, "runtime = 'runsc'")
            lines.insert(lines.index("[engine.runtimes]") + 1, f"runsc = ['{runtime}']")
            path.write_text("\n".join(lines))
            return configured

    return Daemon


async def refusal(daemon: ContainerDaemon, folder: Path) -> str:
    """Return why a sandbox under gVisor is not handed over."""
    rules = container_settings(daemon, runtime="runsc", patience_seconds=30.0)
    engine = ContainerEngine(daemon.name, folder, rules)
    before = _containers(daemon)
    try:
        with pytest.raises(Unavailable) as caught:
            await engine.create(SandboxSpec())
    finally:
        await engine.close()
    assert _containers(daemon) <= before
    return caught.value.message


def _containers(daemon: ContainerDaemon) -> set[str]:
    return {each["Id"] for each in daemon.call("GET", "/containers/json?all=1")}


async def test_a_runsc_of_dockers_that_is_runc_is_found_out(tmp_path: Path, runc: Path) -> None:
    if shutil.which("dockerd") is None:
        pytest.skip("there is no dockerd: apt-get install docker.io")
    with lying_docker({"path": str(runc)}).running() as daemon:
        assert "which is not gVisor's" in await refusal(daemon, tmp_path)


async def test_a_runsc_that_loads_no_filter_is_found_out(tmp_path: Path) -> None:
    for program in ("dockerd", "runsc"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} on this machine")
    flags = [f"--platform={RUNSC_PLATFORM}", "--network=none"]
    runtime = {"path": shutil.which("runsc"), "runtimeArgs": flags}
    with lying_docker(runtime).running() as daemon:
        assert "give runsc the flag --oci-seccomp" in await refusal(daemon, tmp_path)


async def test_a_runsc_of_podmans_that_is_runc_is_found_out(tmp_path: Path, runc: Path) -> None:
    if shutil.which("podman") is None:
        pytest.skip("there is no podman: apt-get install podman")
    with lying_podman(runc).running() as daemon:
        assert "which is not gVisor's" in await refusal(daemon, tmp_path)


async def test_podman_tells_which_runtime_a_container_has(
    podman_daemon: PodmanDaemon, tmp_path: Path
) -> None:
    rules = container_settings(podman_daemon, runtime="runc", patience_seconds=30.0)
    engine = ContainerEngine("podman", tmp_path, rules)
    try:
        # It is attested before it is returned.
        await (await engine.create(SandboxSpec())).destroy()
        with leaving_nothing(podman_daemon):
            await (await engine.create(SandboxSpec())).destroy()
    finally:
        await engine.close()
