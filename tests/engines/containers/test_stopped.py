"""Containers that are stopped and kept: whose they are, what may start them again, and what becomes of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.engines.containers import labels
from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.contract import Feature
from atoll.errors import Conflict, InvalidRequest, NotFound, Unsupported
from atoll.model.container import ContainerOptions
from atoll.model.limits import Limits
from atoll.model.process import Command
from atoll.model.sandbox import KeptWorkspace, SandboxSpec, SandboxState
from tests.container_engines import leaving_nothing
from tests.engine_fixtures import container_settings
from tools.container_daemons import ContainerDaemon, DockerDaemon

SIZE = 16 << 20
WRITABLE = ContainerOptions(read_only_root=False)


def make(daemon: ContainerDaemon, folder: Path, **rules: Any) -> ContainerEngine:
    # Whoever tests a hundred other things at the same time is patient.
    allowed = container_settings(daemon, allow_writable_root=True, patience_seconds=30.0, **rules)
    return ContainerEngine(daemon.name, folder, allowed)


@pytest.fixture
async def engine(docker_daemon: DockerDaemon, tmp_path: Path) -> AsyncIterator[ContainerEngine]:
    """An engine that leaves nothing but the volume of our own files."""
    made = make(docker_daemon, tmp_path)
    await made._guest.find(await made._images.find(SandboxSpec(), made._settings), {})
    with leaving_nothing(docker_daemon):
        try:
            yield made
        finally:
            await made.close()


def persistent(tmp_path: Path, container: ContainerOptions | None = None) -> SandboxSpec:
    directory = tmp_path / "contents"
    directory.mkdir(mode=0o700, exist_ok=True)
    workspace = KeptWorkspace(str(directory), SIZE)
    return SandboxSpec(workspace=workspace, persistent=True, container=container)


async def read(sandbox: Any, path: str) -> bytes:
    return b"".join([part async for part in sandbox.workspace.read(path)])


async def stop_one(engine: ContainerEngine, spec: SandboxSpec) -> None:
    sandbox = await engine.create(spec)
    await sandbox.workspace.write("note", b"kept")
    await sandbox.stop()


async def test_engines_of_containers_stop_and_keep(engine: ContainerEngine) -> None:
    assert {Feature.STOP, Feature.PERSISTENT_WORKSPACES} <= engine.features


async def test_the_whole_configuration_is_on_labels(
    engine: ContainerEngine, docker_daemon: DockerDaemon, tmp_path: Path
) -> None:
    spec = persistent(tmp_path, ContainerOptions(labels={"team": "blue"}))
    await stop_one(engine, spec)
    facts = docker_daemon.call("GET", f"/containers/atoll-{spec.id}/json")
    marks = facts["Config"]["Labels"]
    assert marks["team"] == "blue" and marks[labels.PERSISTENT] == "true"
    found = labels.own_labels(marks, spec, labels.node_id(tmp_path))
    assert SandboxSpec.from_json(labels.spec_of(found)) == spec
    await engine.discard(spec.id)


async def test_another_program_of_the_node_resumes_it(
    engine: ContainerEngine, docker_daemon: DockerDaemon, tmp_path: Path
) -> None:
    spec = persistent(tmp_path)
    await stop_one(engine, spec)
    other = make(docker_daemon, tmp_path)
    try:
        sandbox = await other.resume(spec)
        assert await read(sandbox, "note") == b"kept"
        await sandbox.destroy()
    finally:
        await other.close()


async def test_another_node_cannot_touch_it(
    engine: ContainerEngine, docker_daemon: DockerDaemon, tmp_path: Path
) -> None:
    spec = persistent(tmp_path)
    await stop_one(engine, spec)
    stranger = make(docker_daemon, tmp_path / "of-another-node")
    try:
        with pytest.raises(Conflict, match="not one that this node has stopped"):
            await stranger.resume(spec)
        with pytest.raises(NotFound):
            await stranger.discard(spec.id)
    finally:
        await stranger.close()
    sandbox = await engine.resume(spec)
    assert await read(sandbox, "note") == b"kept"
    await sandbox.destroy()


@pytest.mark.parametrize("forged", [{}, {labels.SANDBOX: "other"}, {labels.SPEC: "{}"}])
async def test_a_foreign_container_of_that_name_is_neither_started_nor_removed(
    engine: ContainerEngine,
    docker_daemon: DockerDaemon,
    tmp_path: Path,
    forged: dict[str, str],
) -> None:
    spec = persistent(tmp_path)
    marks = {**labels.labels_of(spec, labels.node_id(tmp_path), labels.this_program()), **forged}
    body = {
        "Image": container_settings(docker_daemon).images["base"],
        "Cmd": ["sleep", "1000"],
        "Labels": marks if forged else {},
        "HostConfig": {"NetworkMode": "none"},
    }
    name = f"atoll-{spec.id}"
    docker_daemon.call("POST", "/containers/create", body, name=name)
    try:
        with pytest.raises(Conflict, match="not one that this node has stopped"):
            await engine.resume(spec)
        state = docker_daemon.call("GET", f"/containers/{name}/json")["State"]
        assert not state["Running"]
    finally:
        docker_daemon.call("DELETE", f"/containers/{name}?force=1")


def test_labels_of_ours_are_nobodys_to_write() -> None:
    with pytest.raises(InvalidRequest, match="do not begin"):
        ContainerOptions(labels={labels.NODE: "mine"})


async def test_one_whose_container_was_changed_gets_a_new_one_if_nothing_is_lost(
    docker_daemon: DockerDaemon, tmp_path: Path
) -> None:
    engine = make(docker_daemon, tmp_path)
    spec, open_root = persistent(tmp_path), replace(persistent(tmp_path, WRITABLE), env={})
    await (await engine.create(SandboxSpec())).destroy()
    with leaving_nothing(docker_daemon):
        try:
            for each in (spec, open_root):
                await stop_one(engine, each)
                more = {"Memory": 4 << 30, "MemorySwap": 8 << 30, "PidsLimit": 4096}
                docker_daemon.call("POST", f"/containers/atoll-{each.id}/update", more)
                if each is spec:
                    sandbox = await engine.resume(each)
                    facts = docker_daemon.call("GET", f"/containers/atoll-{each.id}/json")
                    assert facts["HostConfig"]["Memory"] == 1 << 30
                    assert await read(sandbox, "note") == b"kept"
                    await sandbox.destroy()
                else:
                    with pytest.raises(Conflict, match="Memory is"):
                        await engine.resume(each)
                    await engine.discard(each.id)
        finally:
            await engine.close()


async def test_one_whose_container_is_gone_gets_a_new_one_if_nothing_is_lost(
    engine: ContainerEngine, docker_daemon: DockerDaemon, tmp_path: Path
) -> None:
    spec = persistent(tmp_path)
    await stop_one(engine, spec)
    docker_daemon.call("DELETE", f"/containers/atoll-{spec.id}?force=1")
    sandbox = await engine.resume(spec)
    assert await read(sandbox, "note") == b"kept"
    await sandbox.destroy()
    open_root = persistent(tmp_path, WRITABLE)
    with pytest.raises(NotFound, match="it is gone"):
        await engine.resume(open_root)


async def test_a_root_that_can_be_written_is_kept(engine: ContainerEngine, tmp_path: Path) -> None:
    spec = persistent(tmp_path, WRITABLE)
    sandbox = await engine.create(spec)
    # What its user may write besides the trees that go.
    line = "echo here > /var/tmp/root && df /var/tmp | tail -1"
    process = await sandbox.start(Command.shell(line))
    is_root = b"tmpfs" not in b"".join([each.data async for each in process.output()])
    await sandbox.stop()
    sandbox = await engine.resume(spec)
    process = await sandbox.start(Command.shell("cat /var/tmp/root"))
    printed = b"".join([each.data async for each in process.output() if each.stream == "stdout"])
    # Podman has a tree in memory there.
    assert printed == (b"here\n" if is_root else b"")
    await sandbox.destroy()


async def test_a_resumption_that_fails_leaves_it_stopped(
    engine: ContainerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = persistent(tmp_path)
    await stop_one(engine, spec)

    async def fail(*_arguments: object) -> None:
        raise Conflict("on purpose")

    for step in ("_attach", "_start_container", "_greet", "_attest"):
        with monkeypatch.context() as patch:
            patch.setattr(engine, step, fail)
            with pytest.raises(Exception, match="on purpose"):
                await engine.resume(spec)
    sandbox = await engine.resume(spec)
    assert await read(sandbox, "note") == b"kept"
    await sandbox.destroy()


KILLED = """
import asyncio, json, sys
from pathlib import Path
from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.settings import ContainerSettings
from atoll.model.sandbox import SandboxSpec

async def main(name, folder, endpoint, image, spec):
    settings = ContainerSettings(endpoint=endpoint, images={"base": image}, patience_seconds=30.0)
    engine = ContainerEngine(name, Path(folder), settings)
    sandbox = await engine.create(SandboxSpec.from_json(json.loads(spec)))
    await sandbox.workspace.write("note", b"kept")
    print("made", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_one_of_a_killed_program_is_resumed_and_goes_with_its_workspace(
    container_daemon: ContainerDaemon, tmp_path: Path
) -> None:
    engine = make(container_daemon, tmp_path)
    await engine._guest.find(await engine._images.find(SandboxSpec(), engine._settings), {})
    await engine.close()
    spec = persistent(tmp_path)
    with leaving_nothing(container_daemon):
        await _make_and_be_killed(container_daemon, tmp_path, spec)
        # The next program of the node removes what is left of others, but not this.
        engine = make(container_daemon, tmp_path)
        sandbox = await engine.resume(spec)
        assert sandbox.info.state is SandboxState.RUNNING
        assert await read(sandbox, "note") == b"kept"
        await sandbox.destroy()
        await engine.close()
        await _make_and_be_killed(container_daemon, tmp_path, spec)
        (tmp_path / "contents").rename(tmp_path / "removed")
        engine = make(container_daemon, tmp_path)
        await (await engine.create(SandboxSpec())).destroy()
        await engine.close()


async def _make_and_be_killed(daemon: ContainerDaemon, folder: Path, spec: SandboxSpec) -> None:
    rules = container_settings(daemon)
    command = [sys.executable, "-c", KILLED, daemon.name, str(folder)]
    command += [rules.endpoint, rules.images["base"], json.dumps(spec.to_json())]
    program = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert await program.stdout.readline() == b"made\n"
    program.kill()
    await program.wait()


# --- what cannot be had ----------------------------------------------------------------------------------


async def test_what_cannot_be_kept_is_refused_with_the_way_out(
    engine: ContainerEngine, tmp_path: Path
) -> None:
    for options, error, words in (
        (ContainerOptions(user="1000:1000"), InvalidRequest, "leave the user out"),
        (ContainerOptions(runtime="runsc"), Unsupported, "runc or crun"),
    ):
        with pytest.raises(error, match=words):
            await engine.create(persistent(tmp_path, options))


async def test_a_size_that_nothing_holds_a_volume_to_is_refused(
    container_daemon: ContainerDaemon, tmp_path: Path
) -> None:
    engine = make(container_daemon, tmp_path, volumes=("lagoon-*",))
    container_daemon.call("POST", "/volumes/create", {"Name": "lagoon-1"})
    options = ContainerOptions(volume="lagoon-1")
    try:
        with pytest.raises(Unsupported, match="held to no size"):
            limits = Limits(workspace_bytes=32 << 20)
            await engine.create(SandboxSpec(container=options, limits=limits))
        accepted = Limits(workspace_bytes=32 << 20, enforcement="best_effort")
        sandbox = await engine.create(SandboxSpec(container=options, limits=accepted))
        assert sandbox.info.limits.enforced_by["workspace_bytes"] == "nothing"
        await sandbox.destroy()
        with pytest.raises(InvalidRequest, match="leave one of them out"):
            await engine.create(persistent(tmp_path, options))
    finally:
        await engine.close()
        container_daemon.call("DELETE", "/volumes/lagoon-1")
