"""Commands in pooled containers, on a real Docker: the pool, the executor, the manager, and the examples as they are printed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from atoll import AsyncSandbox
from atoll.client.embedded import close_nodes
from atoll.errors import Conflict, InvalidRequest, Unavailable
from atoll.integrations.container_pool import ContainerPool, Place, PooledContainer
from atoll.integrations.executors import DockerSandboxExecutor, SandboxManager
from atoll.integrations.shapes import (
    ExecutionRequest,
    SandboxAnswer,
    SandboxConfig,
    cpus_to_nano_cpus,
    parse_memory,
)
from tests.container_engines import CONTAINER_MARKS, leaving_nothing
from tests.running_server import running_server
from tools.container_daemons import DockerDaemon
from tools.container_images import import_image

pytestmark = list(CONTAINER_MARKS)
# What the examples and the defaults call images that are made here.
NAMES = {"python:3.12-slim": "base", "alpine:3.19": "base", "node:20-alpine": "node"}
PYTHON = "python:3.12-slim"
SHELL = "alpine:3.19"


@pytest.fixture(scope="module")
def docker(docker_daemon: DockerDaemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of a Docker that has the images of the examples."""
    for name, kind in NAMES.items():
        repository, _, tag = name.partition(":")
        made = import_image(docker_daemon, kind)
        docker_daemon.call("POST", f"/images/{made}/tag", repo=repository, tag=tag)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_NODE__MOUNTS", str(tmp_path_factory.getbasetemp()))
        try:
            yield str(docker_daemon.socket)
        finally:
            close_nodes()
            for name in NAMES:
                docker_daemon.call("DELETE", f"/images/{name}")


@pytest.fixture(scope="module")
def ready(docker: str) -> str:
    """The same socket, once what the engine keeps for all containers is there."""

    async def use() -> None:
        async with ContainerPool({"socketPath": docker}) as pool:
            await pool.release(await pool.acquire(SHELL), corrupted=True)

    anyio.run(use)
    return docker


@pytest.fixture
async def pool(ready: str, docker_daemon: DockerDaemon) -> AsyncIterator[ContainerPool]:
    with leaving_nothing(docker_daemon):
        async with ContainerPool({"socketPath": ready}, {"maxSize": 2}) as pool:
            yield pool


async def tell(container: PooledContainer, line: str) -> str:
    return (await container.sandbox.commands.run(line)).stdout.decode()


# --- texts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("512B", 512),
        ("1KB", 1024),
        ("256MB", 256 << 20),
        ("1GB", 1 << 30),
        ("1TB", 1 << 40),
        ("1.5 gb", 3 << 29),
        ("256m", 256 << 20),
        ("128Mi", 128 << 20),
        (1000, 1000),
    ],
)
def test_memory_in_both_families_of_units(text: str | int, found: int) -> None:
    assert parse_memory(text) == found


@pytest.mark.parametrize("text", ["", "MB", "12 bananas", "-1", "1e9", None])
def test_what_is_no_memory_is_refused(text: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_memory(text)


def test_processors() -> None:
    assert [cpus_to_nano_cpus(each) for each in (1, 0.5, 2.25)] == [10**9, 5 * 10**8, 2_250_000_000]
    for wrong in (0, -1, "1", True):
        with pytest.raises(InvalidRequest, match="above 0"):
            cpus_to_nano_cpus(wrong)  # type: ignore[arg-type]


def test_defaults_are_merged_field_by_field() -> None:
    defaults = SandboxConfig.of(
        {
            "timeout": 5,
            "image": "a",
            "resources": {"memory": "256m", "pidsLimit": 100},
            "env": {"A": "1"},
        }
    )
    asked = SandboxConfig.of({"resources": {"pidsLimit": 50}, "env": {"B": "2"}, "image": "b"})
    merged = asked.over(defaults)
    assert merged.resources == {"memory": "256m", "pids_limit": 50}
    assert (merged.env, merged.image, merged.timeout) == ({"A": "1", "B": "2"}, "b", 5)
    assert [merged.seconds(ExecutionRequest(["x"], timeout=each)) for each in (7, None)] == [
        0.007,
        0.005,
    ]
    assert SandboxConfig().seconds(ExecutionRequest(["x"])) == 30


# --- the pool -------------------------------------------------------------------------------------------------


async def test_a_container_is_used_again_and_nothing_of_before_is_in_it(
    pool: ContainerPool,
) -> None:
    first = await pool.acquire(SHELL)
    await tell(
        first, "echo mine > file; echo mine > /tmp/file; setsid sleep 1000 > /dev/null 2>&1 &"
    )
    await pool.release(first)
    second = await pool.acquire(SHELL)
    assert second.id == first.id
    left = await tell(second, "echo * /tmp/* /dev/shm/*; set -- /proc/[0-9]*; echo $#")
    assert left == "* /tmp/* /dev/shm/*\n3\n"


async def test_one_that_differs_in_anything_is_not_given(pool: ContainerPool) -> None:
    first = await pool.acquire(SHELL, {"memory": "256m"})
    await pool.release(first)
    for other in (
        {"memory": "300m"},
        {"cpus": 0.5},
        {"pidsLimit": 50},
        {"env": {"A": "1"}},
        {"user": "1234"},
        {"cpuShares": 512},
        {"networkMode": "bridge"},
    ):
        second = await pool.acquire(SHELL, {"memory": "256m", **other})
        assert second.id != first.id
        await pool.release(second, corrupted=True)
    assert (await pool.acquire(SHELL, {"memory": "256m"})).id == first.id


async def test_another_image_is_another_container(pool: ContainerPool) -> None:
    first = await pool.acquire(SHELL)
    await pool.release(first)
    assert (await pool.acquire(PYTHON)).id != first.id


async def test_a_corrupted_one_is_destroyed(
    pool: ContainerPool, docker_daemon: DockerDaemon
) -> None:
    first = await pool.acquire(SHELL)
    before = docker_daemon.holdings().containers
    await pool.release(first, {"corrupted": True})
    assert len(docker_daemon.holdings().containers) == len(before) - 1
    second = await pool.acquire(SHELL)
    assert second.id != first.id
    await pool.release(second, corrupted=True)
    assert pool.size == 0


async def test_one_that_cannot_be_cleaned_or_has_died_is_not_given_again(
    pool: ContainerPool,
) -> None:
    root = await pool.acquire(SHELL, {"user": "0"})
    await pool.release(root)
    assert pool.size == 0
    first = await pool.acquire(SHELL)
    await pool.release(first)
    await first.sandbox.destroy()
    assert (await pool.acquire(SHELL)).id != first.id


async def test_when_all_are_busy_another_is_made_and_used_once(
    pool: ContainerPool, docker_daemon: DockerDaemon
) -> None:
    kept = [await pool.acquire(SHELL) for _ in range(2)]
    surplus = await pool.acquire(SHELL)
    assert len({each.id for each in (*kept, surplus)}) == 3
    assert ([each.is_tracked for each in (*kept, surplus)], pool.size) == ([True, True, False], 2)
    running = len(docker_daemon.holdings().containers)
    await pool.release(surplus)
    assert len(docker_daemon.holdings().containers) == running - 1
    await pool.release(kept[0])
    assert (await pool.acquire(SHELL)).id == kept[0].id


async def test_many_at_once_never_share_one(pool: ContainerPool) -> None:
    found: list[str] = []

    async def use() -> None:
        container = await pool.acquire(SHELL)
        found.append(await tell(container, "echo * ; echo x > mine"))
        await pool.release(container)

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(use)
    assert found == ["*\n"] * 6
    assert pool.size == 2


async def test_those_that_nobody_wants_are_destroyed(
    ready: str, docker_daemon: DockerDaemon
) -> None:
    before = docker_daemon.holdings().containers
    async with ContainerPool({"socketPath": ready}, {"idleTimeoutMs": 400}) as pool:
        first, busy = await pool.acquire(SHELL), await pool.acquire(SHELL)
        await pool.release(first)
        with anyio.fail_after(60):
            while pool.size > 1:
                await anyio.sleep(0.05)
            while len(docker_daemon.holdings().containers - before) > 1:
                await anyio.sleep(0.05)
        assert await tell(busy, "echo still here") == "still here\n"
        assert (await pool.acquire(SHELL)).id != first.id
    assert docker_daemon.holdings().containers == before


async def test_the_container_is_as_hard_as_any(
    pool: ContainerPool, docker_daemon: DockerDaemon, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("from the host")
    tmp_path.chmod(0o755)
    config = {
        "memory": 256 * 1024 * 1024,
        "cpus": 1,
        "networkMode": "none",
        "mounts": [{"source": str(tmp_path), "target": "/mnt/data", "readOnly": True}],
    }
    before = docker_daemon.holdings().containers
    container = await pool.acquire(PYTHON, config)
    (name,) = docker_daemon.holdings().containers - before
    facts = docker_daemon.call("GET", f"/containers/{name}/json")["HostConfig"]
    assert (facts["CapDrop"], facts["NetworkMode"], facts["PidsLimit"]) == (["ALL"], "none", 100)
    assert "no-new-privileges" in facts["SecurityOpt"]
    assert (facts["Memory"], facts["NanoCpus"]) == (256 << 20, cpus_to_nano_cpus(1))
    assert await tell(container, "cat /mnt/data/data; touch /mnt/data/x || echo no") == (
        "from the hostno\n"
    )


async def test_a_mount_that_the_operator_does_not_list_is_refused(pool: ContainerPool) -> None:
    with pytest.raises(InvalidRequest, match="the operator lists those that may"):
        await pool.acquire(SHELL, {"mounts": [{"source": "/etc", "target": "/mnt/etc"}]})
    assert pool.size == 0


async def test_what_was_not_acquired_cannot_be_released(pool: ContainerPool) -> None:
    container = await pool.acquire(SHELL)
    await pool.release(container)
    with pytest.raises(Conflict, match="given back"):
        await pool.release(container)


async def test_bad_words_are_refused(pool: ContainerPool) -> None:
    for config, reason in (
        ({"memroy": 1}, "has no 'memroy'"),
        ({"networkMode": "wide"}, "none of none, bridge, host"),
        ({"dns": ["1.1.1.1"]}, "goes with allowedHosts"),
        ({"allowedHosts": ["a.example"]}, "goes with network mode 'bridge'"),
        ({"memory": "lots"}, "not understood"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            await pool.acquire(SHELL, config)
    with pytest.raises(InvalidRequest, match="0 or more"):
        ContainerPool(max_size=-1)


# --- the executor ---------------------------------------------------------------------------------------------


@pytest.fixture
async def executor(ready: str, docker_daemon: DockerDaemon) -> AsyncIterator[DockerSandboxExecutor]:
    with leaving_nothing(docker_daemon):
        options = {"docker": {"socketPath": ready}, "pool": {"maxSize": 2}}
        async with DockerSandboxExecutor(options) as executor:
            yield executor


async def test_an_executors_life(ready: str) -> None:
    executor = DockerSandboxExecutor({"docker": {"socketPath": ready}})
    early = await executor.execute({"command": ["true"]}, {"type": "docker"})
    assert not early.success and early.error is not None and "connect()" in early.error
    assert await executor.is_available()
    await executor.connect()
    assert (await executor.execute({"command": ["true"]})).success
    await executor.disconnect()
    await executor.disconnect()
    assert not (await executor.execute({"command": ["true"]})).success
    nowhere = DockerSandboxExecutor({"docker": {"socketPath": "/nowhere/docker.sock"}})
    assert not await nowhere.is_available()
    with pytest.raises(Unavailable, match="does not answer"):
        await nowhere.connect()


async def run(executor: DockerSandboxExecutor, line: str, **config: Any) -> SandboxAnswer:
    return await executor.execute(
        {"command": ["sh", "-c", line]}, {"type": "docker", "image": SHELL, **config}
    )


async def test_what_a_command_does_is_a_success(executor: DockerSandboxExecutor) -> None:
    answer = await run(executor, "echo out; echo err >&2; exit 3")
    assert answer.success and answer.data is not None and answer.engine == "docker"
    data = answer.data
    assert (data.stdout, data.stderr, data.exit_code) == ("out\n", "err\n", 3)
    assert not data.timed_out and data.duration > 0
    missing = await executor.execute({"command": ["no-such-program"]}, {"image": SHELL})
    assert missing.data is not None and missing.data.exit_code == 127


async def test_stdin_directory_and_variables(executor: DockerSandboxExecutor) -> None:
    request = {
        "command": ["sh", "-c", "cat; pwd; echo $A $B"],
        "stdin": "given\n",
        "cwd": "/tmp",
        "env": {"B": "request"},
    }
    config = {"type": "docker", "env": {"A": "config", "B": "config"}, "workdir": "/home/sandbox"}
    answer = await executor.execute(request, config)
    assert answer.data is not None
    assert answer.data.stdout == "given\n/tmp\nconfig request\n"
    elsewhere = await run(executor, "pwd", workdir="/home/sandbox")
    assert elsewhere.data is not None and elsewhere.data.stdout == "/home/sandbox\n"
    usual = await run(executor, "pwd")
    assert usual.data is not None and usual.data.stdout == "/workspace\n"


async def test_a_timeout_is_124_and_its_container_is_gone(
    executor: DockerSandboxExecutor, docker_daemon: DockerDaemon
) -> None:
    before = docker_daemon.holdings().containers
    answer = await run(executor, "echo begun; sleep 1000", timeout=1500)
    assert answer.success and answer.data is not None
    assert (answer.data.exit_code, answer.data.timed_out) == (124, True)
    assert answer.data.stdout == "begun\n"
    assert docker_daemon.holdings().containers == before
    request = {"command": ["sleep", "1000"], "timeout": 1000}
    begun = time.monotonic()
    sooner = await executor.execute(request, {"image": SHELL, "timeout": 600_000})
    assert sooner.data is not None and sooner.data.timed_out
    assert time.monotonic() - begun < 300


async def test_limits_hold(executor: DockerSandboxExecutor) -> None:
    resources = {"memory": "128m", "cpus": 0.5, "pidsLimit": 50}
    code = "x = bytearray(400 << 20); print(len(x))"
    answer = await executor.execute(
        {"command": ["python3", "-c", code]}, {"image": PYTHON, "resources": resources}
    )
    assert answer.success and answer.data is not None and answer.data.exit_code != 0
    offline = await run(executor, "cat /proc/net/dev | wc -l", resources=resources)
    assert offline.data is not None and offline.data.stdout.strip() == "3"


async def test_the_same_configuration_has_the_same_container(
    executor: DockerSandboxExecutor, docker_daemon: DockerDaemon
) -> None:
    before = docker_daemon.holdings().containers
    found = []
    for _ in range(3):
        assert (await run(executor, "true")).success
        found.append(docker_daemon.holdings().containers - before)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 1


async def test_output_is_cut(executor: DockerSandboxExecutor) -> None:
    answer = await run(executor, "head -c 200000 /dev/zero | tr '\\0' x")
    assert answer.data is not None and answer.data.stdout == "x" * 50_000


async def test_what_cannot_be_done_is_a_failure_with_its_reason(
    executor: DockerSandboxExecutor,
) -> None:
    for request, config, reason in (
        ({"command": "ls"}, {}, "a list of a program"),
        ({"command": []}, {}, "needs a command"),
        ({"command": ["true"], "timeout": 0}, {}, "timeout is 0"),
        ({"command": ["true"]}, {"type": "native"}, "runs type 'docker'"),
        ({"command": ["true"]}, {"resources": {"disk": 1}}, "has no 'disk'"),
        ({"command": ["true"]}, {"user": "nobody"}, "has to be a number"),
        ({"command": ["true"]}, {"image": "localhost/nobody/made-this:1"}, "made-this"),
    ):
        answer = await executor.execute(request, config)
        assert not answer.success and answer.data is None and answer.engine is None
        assert answer.error is not None and reason in answer.error


# --- the manager ----------------------------------------------------------------------------------------------


async def test_the_engine_asked_for_is_the_one_used_or_none(ready: str) -> None:
    here, nowhere = {"socketPath": ready}, {"socketPath": "/nowhere/engine.sock"}
    command = {"command": ["echo", "ran"]}
    async with SandboxManager({"docker": here, "podman": nowhere}) as manager:
        assert await manager.is_docker_available() and not await manager.is_wasm_available()
        for kind, reason in (
            ("native", "without any isolation"),
            ("wasm", "no engine"),
            ("podman", "not available"),
            ("vm", "is none of docker"),
        ):
            refused = await manager.execute(command, {"type": kind})
            assert not refused.success and refused.error is not None and reason in refused.error
    options = {"docker": here, "podman": nowhere, "fallbacks": ["podman", "docker"]}
    async with SandboxManager(options) as manager:
        ran = await manager.execute(command, {"type": "wasm"})
        assert ran.success and ran.engine == "docker"
    async with SandboxManager({"docker": nowhere, "podman": nowhere}) as manager:
        assert not await manager.is_docker_available()
        assert not (await manager.execute(command)).success
    with pytest.raises(InvalidRequest, match="fallbacks have to be"):
        SandboxManager({"fallbacks": ["native"]})


async def test_a_server_has_the_containers_as_well(ready: str, docker_daemon: DockerDaemon) -> None:
    settings = {
        "ATOLL_NODE__ENGINES": "docker",
        "ATOLL_CONTAINERS__DOCKER_ENDPOINT": docker_daemon.url,
    }
    with running_server(**settings) as server:
        place = Place("docker", server.url, server.token)
        async with DockerSandboxExecutor(place=place) as executor:
            for _ in range(2):
                answer = await run(executor, "echo *; echo x > mine")
                assert answer.data is not None and answer.data.stdout == "*\n"
            assert len(await AsyncSandbox.list(url=server.url, token=server.token)) == 1


# --- as printed -----------------------------------------------------------------------------------------------


async def test_the_example_of_the_manager(ready: str) -> None:
    sandbox = SandboxManager(
        {
            "docker": {"socketPath": ready},
            "pool": {"maxSize": 10, "idleTimeoutMs": 60_000},
            "defaults": {
                "timeout": 30_000,
                "resources": {"memory": "256m", "cpus": 0.5, "pidsLimit": 100},
                "network": {"mode": "none"},
            },
        }
    )
    await sandbox.initialize()
    result = await sandbox.execute(
        {"command": ["python3", "-c", 'print("hello from sandbox")']},
        {"type": "docker", "image": "python:3.12-slim"},
    )
    assert result.success and result.data is not None
    assert result.data.stdout == "hello from sandbox\n"
    await sandbox.shutdown()


async def test_the_example_of_the_executor(ready: str) -> None:
    executor = DockerSandboxExecutor(
        {
            "docker": {"socketPath": ready},
            "pool": {"maxSize": 5, "idleTimeoutMs": 60_000},
        }
    )
    await executor.connect()
    result = await executor.execute(
        {"command": ["node", "-e", "console.log(2 + 2)"], "timeout": 10_000},
        {
            "type": "docker",
            "image": "node:20-alpine",
            "resources": {"memory": "128m", "cpus": 0.5, "pidsLimit": 50},
            "network": {"mode": "none"},
        },
    )
    assert result.data is not None and result.data.stdout == "4\n", result
    await executor.disconnect()


async def test_the_example_of_the_pool(ready: str, docker_daemon: DockerDaemon) -> None:
    with leaving_nothing(docker_daemon):
        pool = ContainerPool({"socketPath": ready}, {"maxSize": 10, "idleTimeoutMs": 120_000})
        container = await pool.acquire(
            "python:3.12-slim", {"memory": 256 * 1024 * 1024, "cpus": 1, "networkMode": "none"}
        )
        await pool.release(container)
        container = await pool.acquire(
            "python:3.12-slim", {"memory": 256 * 1024 * 1024, "cpus": 1, "networkMode": "none"}
        )
        await pool.release(container, {"corrupted": True})
        await pool.destroy_all()
