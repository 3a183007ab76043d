"""Requests that another system's page prints, as they are, against a server whose engine is Docker."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.container_engines import CONTAINER_MARKS
from tests.running_server import RunningServer, running_server
from tools.container_daemons import DockerDaemon
from tools.container_images import BARE_PROGRAM, import_image

pytestmark = list(CONTAINER_MARKS)

# As they are printed there; token, id and port are those of its author's server.
CREATING = r"""
curl -H "Authorization: Bearer JL8pp3K1gZ_wHfd0G0R3DOBDt2KI-3TK08Mk4Xuel4Y" \
  -H "Content-type: application/json" \
  -d '{"image": "hello-world", "label": "hello", "interactive": false}' \
  http://localhost:8000/sandboxes
"""
TELLING = r"""
curl -H "Authorization: Bearer JL8pp3K1gZ_wHfd0G0R3DOBDt2KI-3TK08Mk4Xuel4Y" \
  http://localhost:8000/sandboxes/b47300fa1f01fcde12d628f88e18603fd7c68807374b63fb3cd6ffd460c3a6aa/logs
"""


@pytest.fixture(scope="module")
def server(docker_daemon: DockerDaemon) -> Iterator[RunningServer]:
    """A server all of whose sandboxes are containers, of images that were made here."""
    _make_greeting(docker_daemon)
    chosen = {
        "ATOLL_NODE__ENGINE": "docker",
        "ATOLL_CONTAINERS__DOCKER_ENDPOINT": docker_daemon.url,
        "ATOLL_CONTAINERS__IMAGES": f"base={import_image(docker_daemon, 'base')}",
    }
    try:
        with running_server(**chosen) as server:
            yield server
    finally:
        docker_daemon.call("DELETE", "/images/hello-world?force=1&noprune=1")


def _make_greeting(daemon: DockerDaemon) -> None:
    """Make the image that everybody runs first: it has one program, which it runs by itself."""
    name = import_image(daemon, "bare")
    made = daemon.call("POST", "/containers/create", {"Image": name, "Cmd": [BARE_PROGRAM]})
    settings = {"Cmd": [BARE_PROGRAM, "greet"]}
    query = {"container": made["Id"], "repo": "hello-world", "tag": "latest"}
    daemon.call("POST", "/commit", settings, **query)
    daemon.call("DELETE", f"/containers/{made['Id']}?force=1")


def test_a_sandbox_runs_what_its_image_runs_and_its_logs_tell(server: RunningServer) -> None:
    made = json.loads(_run(CREATING, server))
    assert {"id", "name", "label"} <= set(made)
    assert made["label"] == "hello"
    printed = ""
    while "correctly" not in printed:
        printed = _run(TELLING, server, sandbox=made["id"])
    assert printed.startswith("Hello from Docker!\nThis message shows")


def test_a_sandbox_without_a_word_about_programs_runs_none(server: RunningServer) -> None:
    sandbox = json.loads(_run(CREATING.replace(', "interactive": false', ""), server))["id"]
    assert _run(TELLING, server, sandbox=sandbox) == ""


def _run(command: str, server: RunningServer, sandbox: str = "") -> str:
    """Run a line as it is printed, but with what is this server's."""
    command = re.sub(r"Bearer [\w-]+", f"Bearer {server.token}", command)
    command = re.sub(r"/sandboxes/\w+/", f"/sandboxes/{sandbox}/", command)
    done = subprocess.run(
        ["bash", "-c", command.replace("localhost:8000", f"localhost:{server.port}")],
        env={"PATH": os.environ["PATH"], "no_proxy": "*"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
