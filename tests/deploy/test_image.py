"""The image of a server."""

from __future__ import annotations

import json

from tests.deploy.docker import Docker, wait_until

# What docs/deployment.md and deploy/compose.yaml give it: no privilege, and no filter beside Atoll's own.
CONFINED = (
    "--network=none",
    "--read-only",
    "--tmpfs=/tmp",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--security-opt=seccomp=unconfined",
    "--security-opt=systempaths=unconfined",
)


def test_a_server_runs_without_privileges_and_makes_sandboxes(
    docker: Docker, server_image: str
) -> None:
    with docker.container(*CONFINED, "--health-interval=1s", server_image) as server:
        wait_until(lambda: _health(docker, server) == "healthy", lambda: _log(docker, server))
        status = docker("exec", server, "cat", "/proc/1/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split() == ["10001"] * 4
        assert int(fields["CapBnd"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        made = docker("exec", server, "atoll", "create", "--json")
        sandbox = json.loads(made)["id"]
        told = docker("exec", server, "atoll", "exec", sandbox, "--", "sh", "-c", "id -u; echo $$")
        assert told.splitlines()[0] == "65532"
        _nothing_is_left_unburied(docker, server)
        docker("stop", server)
        state = docker.inspect(server)["State"]
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False), _log(docker, server)


def test_a_server_that_does_not_answer_is_unhealthy(docker: Docker, server_image: str) -> None:
    quick = ("--health-interval=1s", "--health-retries=2", "--health-start-period=1ms")
    with docker.container(*CONFINED, *quick, "--entrypoint=sleep", server_image, "1000") as sleeper:
        wait_until(lambda: _health(docker, sleeper) == "unhealthy", lambda: _log(docker, sleeper))


def test_the_image_says_how_it_is_run(docker: Docker, server_image: str) -> None:
    settings = docker.inspect(server_image)["Config"]
    assert settings["User"] == "atoll"
    assert set(settings["Volumes"]) == {"/var/lib/atoll"}
    assert set(settings["ExposedPorts"]) == {"8000/tcp"}
    # Neither what it was installed with nor what was only needed for that.
    kept = docker("run", "--rm", "--network=none", "--entrypoint=ls", server_image, "/", "/opt")
    assert not {"installer", "build", "wheels"} & {*kept.split()}


def _health(docker: Docker, container: str) -> str:
    return str(docker.inspect(container)["State"]["Health"]["Status"])


def _log(docker: Docker, container: str) -> str:
    return docker("logs", container, may_fail=True)


def _nothing_is_left_unburied(docker: Docker, container: str) -> None:
    def dead() -> str:
        states = docker("exec", container, "ps", "-eo", "stat=,args=")
        return "\n".join(line for line in states.splitlines() if line.startswith("Z"))

    wait_until(lambda: not dead(), dead)
