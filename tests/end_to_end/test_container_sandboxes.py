"""Containers as people ask for them: by the SDK in this process and over a server, by HTTP, and on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest

from atoll import (
    AsyncSandbox,
    ContainerOptions,
    InvalidRequest,
    Sandbox,
    Unavailable,
    Unsupported,
    Workspaces,
)
from atoll.client.embedded import close_nodes
from atoll.model.ids import SandboxId
from atoll.model.sandbox import SandboxState
from tests.container_engines import CONTAINER_MARKS, leaving_nothing
from tests.running_server import RunningServer, running_server, start_server
from tools import typescript
from tools.container_daemons import DockerDaemon
from tools.container_images import import_image

# Some ask for the daemon by way of another fixture, which nobody sees from outside.
pytestmark = list(CONTAINER_MARKS)
# How Linux calls itself under gVisor.
GVISOR = "4.4.0"
MISSING = "localhost/nobody/made-this:1"


@pytest.fixture(scope="module")
def image(docker_daemon: DockerDaemon) -> str:
    return import_image(docker_daemon, "base")


@pytest.fixture(scope="module")
def variables(docker_daemon: DockerDaemon, image: str) -> Mapping[str, str]:
    """What tells Atoll where the engine is, and which images it has."""
    return {
        "ATOLL_CONTAINERS__DOCKER_ENDPOINT": docker_daemon.url,
        "ATOLL_CONTAINERS__IMAGES": f"base={image},python={image},tools={image}",
    }


@pytest.fixture(scope="module")
def server(variables: Mapping[str, str]) -> Iterator[RunningServer]:
    """A server whose own engine is another; its operator allows a few things."""
    allowed = {
        "ATOLL_NODE__ENGINES": "docker,gvisor",
        "ATOLL_CONTAINERS__RUNTIMES": "runc,runsc",
        "ATOLL_CONTAINERS__CAPABILITIES": "net_bind_service",
    }
    with running_server(**variables, **allowed) as server:
        yield server


@pytest.fixture(scope="module")
def docker_server(variables: Mapping[str, str]) -> Iterator[RunningServer]:
    """A server all of whose sandboxes are containers, under gVisor."""
    chosen = {"ATOLL_NODE__ENGINE": "docker", "ATOLL_CONTAINERS__RUNTIME": "runsc"}
    with running_server(**variables, **chosen) as server:
        yield server


@pytest.fixture(scope="module")
def embedded(variables: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """A node of this process, which ends with this module: the engine does."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        try:
            yield {"url": ""}
        finally:
            close_nodes()


@pytest.fixture(params=["embedded", "server"])
def place(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """Who holds the sandboxes, as arguments of each."""
    found = request.getfixturevalue(request.param)
    if isinstance(found, RunningServer):
        return {"url": found.url, "token": found.token}
    assert isinstance(found, Mapping)
    return found


def test_an_image_is_used_as_any_sandbox_is(
    place: Mapping[str, Any], image: str, docker_daemon: DockerDaemon
) -> None:
    Sandbox.create(
        engine="docker", image=image, **place
    ).destroy()  # what the engine keeps is there
    with leaving_nothing(docker_daemon):
        files = {"note.txt": "hello"}
        with Sandbox(engine="docker", image=image, files=files, **place) as sandbox:
            assert sandbox.info().engine == "docker"
            told = sandbox.commands.run("cat note.txt; id -u; cat /proc/1/comm")
            assert told.stdout == b"hello65532\nsteward\n"
            assert sandbox.commands.run("exit 3").exit_code == 3
            assert sandbox.commands.run("wc -c", stdin=b"\xff" * 300_000).stdout == b"300000\n"
            sandbox.files.write("data.bin", b"\x00\xff")
            assert sandbox.files.read("data.bin") == b"\x00\xff"
            assert {each.path for each in sandbox.files.list()} == {"note.txt", "data.bin"}
            sandbox.run_code("x = 20 + 1")
            assert sandbox.run_code("2 * x").text == "42"
            (facts,) = docker_daemon.call("GET", "/containers/json")
            assert facts["Image"] in (image, facts["ImageID"])


def test_one_that_is_stopped_or_lost_goes_on_with_its_files(
    place: Mapping[str, Any], docker_daemon: DockerDaemon
) -> None:
    Sandbox.create("tools", engine="docker", **place).destroy()  # what the engine keeps is there
    with leaving_nothing(docker_daemon):
        with Sandbox("tools", engine="docker", persistent=True, **place) as sandbox:
            sandbox.run_code("open('note', 'w').write('kept')")
            sandbox.stop()
        assert docker_daemon.call("GET", "/containers/json") == []
        sandbox = Sandbox.connect(sandbox.id, **place)
        try:
            assert sandbox.info().engine == "docker"
            assert sandbox.run_code("open('note').read()").text == "'kept'"
            docker_daemon.call("DELETE", f"/containers/atoll-{sandbox.id}?force=1")
            with anyio.from_thread.start_blocking_portal() as portal:
                portal.call(_until_stopped, sandbox.id, place)
            sandbox = Sandbox.connect(sandbox.id, **place)
            assert sandbox.files.read("note") == b"kept"
        finally:
            sandbox.destroy()


async def _until_stopped(sandbox_id: str, place: Mapping[str, Any]) -> None:
    with anyio.fail_after(60):
        while True:
            listed = {each.id: each.state for each in await AsyncSandbox.list(**place)}
            if listed.get(SandboxId(sandbox_id)) is SandboxState.STOPPED:
                return
            await anyio.sleep(0.1)


def test_workspaces_are_shared_by_engines(place: Mapping[str, Any]) -> None:
    with Sandbox("tools", engine="docker", workspace="shared-lagoon", **place) as sandbox:
        sandbox.commands.run("echo from a container > note; mkdir -m 700 own")
    try:
        with Sandbox("base", engine="namespaces", workspace="shared-lagoon", **place) as sandbox:
            told = sandbox.commands.run("cat note; touch own/file; echo and back > reply")
            assert (told.stdout, told.exit_code) == (b"from a container\n", 0)
        with Sandbox("tools", engine="docker", workspace="shared-lagoon", **place) as sandbox:
            assert sandbox.commands.run("cat reply; ls own").stdout == b"and back\nfile\n"
            held = sandbox.info().limits
            assert held.limits.workspace_bytes == 512 << 20
    finally:
        Workspaces(**place).remove("shared-lagoon")


def test_a_terminal_is_one(place: Mapping[str, Any], image: str) -> None:
    with (
        Sandbox(engine="docker", image=image, **place) as sandbox,
        sandbox.terminals.open() as terminal,
    ):
        terminal.write("echo $((6 * 7)); exit 5\n")
        assert b"42\r\n" in b"".join(terminal.output())
        assert terminal.wait().exit_code == 5


def test_a_template_is_the_image_that_the_operator_names(place: Mapping[str, Any]) -> None:
    with Sandbox("tools", engine="docker", **place) as sandbox:
        assert sandbox.info().template == "tools"
        assert sandbox.run_code("6 * 7").text == "42"
    with pytest.raises(
        InvalidRequest, match=r"'julia' has no image; there is one for: base, python"
    ):
        Sandbox.create("julia", engine="docker", **place)


def test_options_reach_the_container(
    place: Mapping[str, Any], image: str, docker_daemon: DockerDaemon
) -> None:
    options = ContainerOptions(
        labels={"team": "blue"}, user="1000:1001", cpu_shares=512, pull="never"
    )
    with Sandbox(engine="docker", image=image, container=options, **place) as sandbox:
        assert sandbox.commands.run("id -u; id -g").stdout == b"1000\n1001\n"
        (found,) = docker_daemon.call(
            "GET", "/containers/json", filters=json.dumps({"label": ["team=blue"]})
        )
        facts = docker_daemon.call("GET", f"/containers/{found['Id']}/json")
        assert facts["HostConfig"]["CpuShares"] == 512


def test_a_runtime_can_be_named(
    place: Mapping[str, Any], image: str, docker_daemon: DockerDaemon
) -> None:
    if "runsc" not in docker_daemon.runtimes:
        pytest.skip("there is no runsc on this machine")
    with Sandbox(engine="docker", image=image, container={"runtime": "runsc"}, **place) as sandbox:
        assert sandbox.commands.run("uname -r").stdout.decode().strip() == GVISOR


def test_an_image_that_is_not_there_is_named(place: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"{MISSING}.*pull is 'never'"):
        Sandbox.create(engine="docker", container={"image": MISSING, "pull": "never"}, **place)
    # A server asks no registry that its operator has not listed.
    with pytest.raises((Unavailable, InvalidRequest), match=MISSING):
        Sandbox.create(engine="docker", image=MISSING, **place)


@pytest.mark.parametrize("engine", [None, "gvisor"])
def test_other_engines_refuse_images(place: Mapping[str, Any], engine: str | None) -> None:
    with pytest.raises(InvalidRequest, match="makes no containers; leave image and container out"):
        Sandbox.create(engine=engine, image="debian", **place)


def test_packages_are_those_of_the_image(place: Mapping[str, Any]) -> None:
    with pytest.raises(Unsupported, match="--dockerfile DIR"):
        Sandbox.create(engine="docker", packages=["six"], **place)


def test_what_the_operator_does_not_allow_is_refused_by_its_setting(server: RunningServer) -> None:
    place: dict[str, Any] = {"engine": "docker", "url": server.url, "token": server.token}
    for wrong, name in (
        ({"runtime": "crun"}, "runtimes"),
        ({"user": "0"}, "allow_root"),
        ({"network": "host"}, "networks"),
        ({"cap_add": ["SYS_ADMIN"]}, "capabilities"),
        ({"read_only_root": False}, "allow_writable_root"),
        ({"volume": "theirs"}, "volumes"),
        ({"seccomp": "lax"}, "seccomp_profiles"),
    ):
        with pytest.raises(InvalidRequest, match=f"not allowed .*`{name}`"):
            Sandbox.create(container=wrong, **place)


def test_what_this_process_asks_for_is_its_own_leave(embedded: Mapping[str, Any]) -> None:
    options = ContainerOptions(user="0", read_only_root=False)
    with Sandbox(engine="docker", container=options, **embedded) as sandbox:
        told = sandbox.commands.run("id -u; touch /made && echo made")
        assert told.stdout == b"0\nmade\n"


def test_a_pool_keeps_them_ready_by_all_options(
    embedded: Mapping[str, Any], image: str, docker_daemon: DockerDaemon
) -> None:
    before = docker_daemon.holdings().containers
    Sandbox.warm(1, engine="docker", image=image, **embedded)
    (ready,) = docker_daemon.holdings().containers - before
    other = ContainerOptions(labels={"team": "red"})
    with Sandbox(engine="docker", image=image, container=other, **embedded) as sandbox:
        assert ready not in _containers_used_by(docker_daemon, sandbox)
    with Sandbox(engine="docker", image=image, **embedded) as sandbox:
        assert ready in _containers_used_by(docker_daemon, sandbox)
    Sandbox.warm(0, engine="docker", image=image, **embedded)


def test_a_pool_gives_none_of_an_image_that_was_replaced(
    embedded: Mapping[str, Any], image: str, docker_daemon: DockerDaemon
) -> None:
    name = "localhost/replaced:1"
    _tag(docker_daemon, image, name)
    before = docker_daemon.holdings().containers
    Sandbox.warm(1, engine="docker", image=name, **embedded)
    (old,) = docker_daemon.holdings().containers - before
    _tag(docker_daemon, _another_image(docker_daemon, image), name)
    try:
        with Sandbox(engine="docker", image=name, **embedded) as sandbox:
            assert sandbox.commands.run("echo $REPLACED").stdout == b"yes\n"
        anyio.run(_until, lambda: old not in docker_daemon.holdings().containers)
    finally:
        Sandbox.warm(0, engine="docker", image=name, **embedded)
        docker_daemon.call("DELETE", f"/images/{name}", force="1")


def _tag(daemon: DockerDaemon, image: str, name: str) -> None:
    repository, _, tag = name.rpartition(":")
    daemon.call("POST", f"/images/{image}/tag", repo=repository, tag=tag)


def _another_image(daemon: DockerDaemon, image: str) -> str:
    made = daemon.call("POST", "/containers/create", {"Image": image, "Cmd": ["true"]})["Id"]
    try:
        body = {"Env": ["REPLACED=yes"]}
        found: str = daemon.call("POST", "/commit", body, container=made)["Id"]
        return found
    finally:
        daemon.call("DELETE", f"/containers/{made}")


async def _until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(120):
        while not true():
            await anyio.sleep(0.1)


def test_what_was_left_is_gone_after_cleaning(place: Mapping[str, Any], image: str) -> None:
    with Sandbox(engine="docker", image=image, **place) as sandbox:
        sandbox.run_code("x = 1; open('/tmp/mine', 'w').write('x')")
        sandbox.files.write("mine", b"x")
        process = sandbox.commands.start("sleep 1000")
        sandbox.clean()
        assert process.wait().exit_code is None
        assert sandbox.files.list() == []
        assert sandbox.commands.run("echo /tmp/*").stdout == b"/tmp/*\n"
        cell = sandbox.run_code("x")
        assert cell.error is not None and cell.error.name == "NameError"
    with (
        Sandbox("base", **place) as other,
        pytest.raises(Unsupported, match="rather than cleaning"),
    ):
        other.clean()


def test_only_directories_that_the_operator_lists_are_mounted(
    server: RunningServer, image: str
) -> None:
    mount = {"source": "/etc", "target": "/mnt/etc"}
    with pytest.raises(InvalidRequest, match="the operator lists those that may"):
        Sandbox.create(
            engine="docker", image=image, mounts=[mount], url=server.url, token=server.token
        )


def test_an_engine_is_named_by_its_address(docker_daemon: DockerDaemon, image: str) -> None:
    with Sandbox("base", url=f"docker+{docker_daemon.url}", image=image) as sandbox:
        assert sandbox.info().engine == "docker"
        assert sandbox.commands.run("echo here").stdout == b"here\n"
    for wrong in ({"engine": "podman"}, {"token": "atoll_x"}):
        with pytest.raises(InvalidRequest):
            Sandbox(url=f"docker+{docker_daemon.url}", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="no place of a container engine"):
        Sandbox(url="docker+http://x")


def test_what_a_killed_server_had_ready_is_gone_with_the_next(
    variables: Mapping[str, str], image: str, docker_daemon: DockerDaemon, tmp_path: Path
) -> None:
    settings = {
        **variables,
        "ATOLL_NODE__ENGINES": "docker",
        "ATOLL_POOLS__READY": f"docker:{image}=2",
        "ATOLL_NODE__SOCKET": str(tmp_path / "s"),
    }
    data = tmp_path / "data"
    data.mkdir()
    before = docker_daemon.holdings().containers

    def ready() -> frozenset[str]:
        return docker_daemon.holdings().containers - before

    server = start_server(data, **settings)
    anyio.run(_until, lambda: len(ready()) == 2)
    left = ready()
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(60)
    server = start_server(data, **settings)
    try:
        anyio.run(_until, lambda: len(ready()) == 2 and not left & ready())
    finally:
        server.stop()
    assert ready() == frozenset()


def _containers_used_by(daemon: DockerDaemon, sandbox: Sandbox) -> list[str]:
    """Return the containers in which a process of this sandbox runs."""
    with sandbox.commands.start("sleep 4321"):
        return [
            each
            for each in daemon.holdings().containers
            if "sleep 4321" in json.dumps(daemon.call("GET", f"/containers/{each}/top"))
        ]


# --- over HTTP, without an SDK ---------------------------------------------------------------------------


def ask(server: RunningServer, **body: Any) -> Any:
    """Make a sandbox; return what the server tells about it."""

    async def call() -> Any:
        async with server.client() as client:
            return await client.call("POST", "/sandboxes", body=body)

    return anyio.run(call)


def test_an_image_means_what_the_engine_makes_of_it(
    server: RunningServer, docker_server: RunningServer, image: str
) -> None:
    assert ask(server, image="base")["template"] == "base"
    assert ask(server, image=image, engine="docker")["template"] == "python"
    assert ask(docker_server, image=image, template="base")["template"] == "base"
    with pytest.raises(
        InvalidRequest, match="template and image mean the same to engine namespaces"
    ):
        ask(server, image="base", template="python")
    with pytest.raises(InvalidRequest, match=r"image is 'one', and that of container is 'other'"):
        ask(docker_server, image="one", container={"image": "other"})


def test_every_sandbox_has_the_runtime_of_the_operator(
    docker_server: RunningServer, docker_daemon: DockerDaemon
) -> None:
    if "runsc" not in docker_daemon.runtimes:
        pytest.skip("there is no runsc on this machine")
    place: dict[str, Any] = {"url": docker_server.url, "token": docker_server.token}
    with Sandbox("base", **place) as sandbox:
        assert sandbox.info().engine == "docker"
        assert sandbox.commands.run("uname -r").stdout.decode().strip() == GVISOR
    with pytest.raises(InvalidRequest, match="runtime 'runc' is not allowed"):
        Sandbox.create(container={"runtime": "runc"}, **place)


def test_unknown_options_are_refused_by_name(docker_server: RunningServer) -> None:
    with pytest.raises(InvalidRequest, match=r"container\.privileged"):
        ask(docker_server, container={"privileged": True})
    with pytest.raises(InvalidRequest, match=r"container\.pull"):
        ask(docker_server, container={"pull": "sometimes"})


# --- from JavaScript -------------------------------------------------------------------------------------

_PROGRAM = """
import { Sandbox } from "./src/index.js";
import { DockerSandbox } from "./src/docker/index.js";

const image = process.argv[2];
const user = "1000:1001";
const sandbox = await Sandbox.create({ engine: "docker", image, container: { user, pull: "never" } });
console.log((await sandbox.info()).engine, (await sandbox.commands.run("id -u")).stdout.trim());
await sandbox.destroy();
const session = await new DockerSandbox({ engine: "docker", image, runtime: "runc" }).createSession();
console.log((await session.exec({ command: "cat", args: ["/proc/1/comm"] })).stdout.trim());
await session.destroy();
const refused = new DockerSandbox({ engine: "docker", image, network: "host" }).createSession();
await refused.catch((error) => console.log(error.message));
"""


def test_javascript_has_containers_too(server: RunningServer, image: str, tmp_path: Path) -> None:
    try:
        typescript.run("tsc", "--outDir", str(tmp_path), "--rootDir", str(typescript.SDK))
    except typescript.NoNode as error:
        pytest.skip(str(error))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "program.js").write_text(_PROGRAM)
    assert server.token is not None
    done = subprocess.run(
        ["node", "program.js", image],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "ATOLL_URL": server.url, "ATOLL_TOKEN": server.token},
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == ["docker 1000", "steward"], done.stderr
    assert "network 'host' is not allowed" in lines[2]


# --- on the command line ---------------------------------------------------------------------------------


def atoll(
    *words: str, variables: Mapping[str, str], data: Path
) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-P", "-m", "atoll", *words],
        env={**kept, "ATOLL_DATA": str(data), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_program_runs_in_an_image(
    docker_daemon: DockerDaemon, image: str, tmp_path: Path
) -> None:
    usual = {"DOCKER_HOST": docker_daemon.url}
    words = ("run", "--engine", "docker", "--image", image, "--pull", "never")
    done = atoll(*words, "-c", "print(6 * 7)", variables=usual, data=tmp_path)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    if "runsc" in docker_daemon.runtimes:
        more = ("--runtime", "runsc", "--language", "sh")
        done = atoll(*words, *more, "-c", "uname -r", variables=usual, data=tmp_path)
        assert done.stdout == f"{GVISOR}\n", done.stderr


def test_a_session_runs_in_an_image(
    variables: Mapping[str, str], image: str, tmp_path: Path
) -> None:
    notebook = {
        "cells": [{"cell_type": "code", "source": "6 * 7", "metadata": {}, "outputs": []}],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    file = tmp_path / "one.ipynb"
    file.write_text(json.dumps(notebook))
    words = ("run", "--engine", "docker", "--image", image, str(file))
    done = atoll(*words, variables=variables, data=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "42" in file.read_text()


def test_an_image_that_is_not_there_ends_a_command(
    variables: Mapping[str, str], tmp_path: Path
) -> None:
    words = ("run", "--engine", "docker", "--image", MISSING, "--pull", "never", "-c", "1")
    done = atoll(*words, variables=variables, data=tmp_path)
    assert done.returncode == 125
    assert f"image '{MISSING}' is not here" in done.stderr


def test_the_node_creates_containers(server: RunningServer, image: str) -> None:
    words = ("create", "--engine", "docker", "--image", image, "--runtime", "runc", "--json")
    done = atoll(*words, variables={}, data=server.data)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["engine"] == "docker"
    done = atoll("create", "--image", "debian", variables={}, data=server.data)
    assert done.returncode == 125 and "engine namespaces makes no containers" in done.stderr
