"""The façade `DockerSandbox` of the TypeScript SDK against a server whose engine is Docker: the tests of the façade, unchanged."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container_engines import CONTAINER_MARKS
from tests.running_server import RunningServer, running_server
from tools import typescript
from tools.container_daemons import DockerDaemon
from tools.container_images import import_image
from tools.typescript import SDK

pytestmark = list(CONTAINER_MARKS)

NODE = (
    "node",
    "--experimental-websocket",
    "--test",
    "--test-reporter=tap",
    "--test-timeout=300000",
)


@pytest.fixture(scope="module")
def server(docker_daemon: DockerDaemon) -> Iterator[RunningServer]:
    """A server all of whose sandboxes are containers; what the tests call `base` is an image of that name."""
    image = import_image(docker_daemon, "base")
    docker_daemon.call("POST", f"/images/{image}/tag", repo="base", tag="latest")
    chosen = {
        "ATOLL_NODE__ENGINE": "docker",
        "ATOLL_CONTAINERS__DOCKER_ENDPOINT": docker_daemon.url,
        "ATOLL_CONTAINERS__IMAGES": f"base={image}",
    }
    before = docker_daemon.holdings().containers
    try:
        with running_server(**chosen) as server:
            yield server
        assert docker_daemon.holdings().containers <= before  # others may go meanwhile
    finally:
        docker_daemon.call("DELETE", "/images/base?force=1&noprune=1")


def test_every_case_of_the_facade_holds_in_containers(
    server: RunningServer, tmp_path: Path
) -> None:
    try:
        typescript.install()
        typescript.run("tsc", "--outDir", str(tmp_path), "--rootDir", str(SDK))
    except typescript.NoNode as error:
        pytest.skip(str(error))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    assert server.token is not None
    done = subprocess.run(
        [*NODE, "./test/docker.test.js"],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "ATOLL_URL": server.url,
            "ATOLL_TOKEN": server.token,
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    cases = re.findall(r"^(ok|not ok) \d+ - (.*)$", done.stdout, re.MULTILINE)
    failed = [name for outcome, name in cases if outcome == "not ok"]
    assert failed == [] and len(cases) >= 16, done.stdout + done.stderr
