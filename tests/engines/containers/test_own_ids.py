"""Ids on the host that one container alone has: seen from the host, and refused where they cannot be had."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.engines.containers import own_ids
from atoll.engines.containers.checks import check_own_ids
from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.own_ids import HostIds, find_host_ids
from atoll.engines.containers.profile import Profile
from atoll.engines.containers.settings import ContainerSettings
from atoll.engines.contract import Feature, Sandbox
from atoll.errors import AtollError, InvalidRequest, Unavailable, Unsupported
from atoll.model.container import ContainerOptions
from atoll.model.process import Command
from atoll.model.sandbox import KeptWorkspace, SandboxSpec
from tests.container_engines import leaving_nothing
from tests.engine_fixtures import container_settings
from tools.container_daemons import ContainerDaemon, DockerDaemon, PodmanDaemon

DAEMONS = ("docker_daemon", "mapping_docker_daemon", "podman_daemon")
USER = (65532, 65532)


def make(daemon: ContainerDaemon, folder: Path, **rules: Any) -> ContainerEngine:
    settings = container_settings(daemon, own_ids=True, patience_seconds=30.0, **rules)
    return ContainerEngine(daemon.name, folder, settings)


@pytest.fixture(params=DAEMONS)
def daemon(request: pytest.FixtureRequest) -> ContainerDaemon:
    """Each of those that have root in turn."""
    found: ContainerDaemon = request.getfixturevalue(request.param)
    return found


pytestmark = [pytest.mark.timeout(900)]
real = pytest.mark.containers


@pytest.fixture
async def engine(daemon: ContainerDaemon, tmp_path: Path) -> AsyncIterator[ContainerEngine]:
    """An engine that leaves nothing but the volume of our own files."""
    made = make(daemon, tmp_path)
    await (await made.create(SandboxSpec())).destroy()
    with leaving_nothing(daemon):
        try:
            yield made
        finally:
            await made.close()


def host_users(daemon: ContainerDaemon, sandbox: Sandbox) -> set[str]:
    """Return the users of all that runs in a container, as this machine has them."""
    name = f"/containers/atoll-{sandbox.id}"
    pid = daemon.call("GET", f"{name}/json")["State"]["Pid"]
    group = Path(f"/proc/{pid}/ns/pid").readlink()
    users = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns/pid").readlink() == group:
                status = (process / "status").read_text().splitlines()
                users.add(next(line for line in status if line.startswith("Uid:")).split()[1])
        except OSError:
            continue  # it has just ended
    return users


async def said(sandbox: Sandbox, script: str) -> str:
    process = await sandbox.start(Command(("sh", "-c", script)))
    output = b"".join([chunk.data async for chunk in process.output()])
    assert (await process.wait()).exit_code == 0, output
    return output.decode()


@real
@pytest.mark.root_only
async def test_no_two_containers_share_a_user_of_the_host(
    engine: ContainerEngine, daemon: ContainerDaemon
) -> None:
    sandboxes = [await engine.create(SandboxSpec()) for _ in range(3)]
    users = [host_users(daemon, each) for each in sandboxes]
    assert all(len(each) == 1 for each in users), users
    assert len(set.union(*users)) == 3
    assert not set.union(*users) & {"0", "65532"}
    for each in sandboxes:
        await each.destroy()
    assert engine._host_ids._taken == {}


@real
@pytest.mark.root_only
async def test_code_inside_works_as_before(engine: ContainerEngine) -> None:
    sandbox = await engine.create(SandboxSpec())
    await sandbox.workspace.write("note", b"6 * 7")
    await said(sandbox, 'touch /tmp/a "$HOME/b" c && chmod 700 . && test "$(cat note)" = "6 * 7"')
    owners = await said(sandbox, "stat -c %u:%g . note c; echo $(id -u):$(id -g)")
    assert len(set(owners.split())) == 1
    assert await said(sandbox, "id -G") == await said(sandbox, "id -g")
    await sandbox.clean()
    assert await said(sandbox, "ls -A /workspace") == ""
    await sandbox.destroy()


@real
@pytest.mark.root_only
async def test_two_nodes_of_one_engine_choose_different_ones(
    engine: ContainerEngine, daemon: ContainerDaemon, tmp_path: Path
) -> None:
    other = make(daemon, tmp_path / "other")
    try:
        users = [host_users(daemon, await each.create(SandboxSpec())) for each in (engine, other)]
        assert not users[0] & users[1]
    finally:
        await other.close()


@real
@pytest.mark.root_only
async def test_a_user_whom_another_node_has_chosen_too_is_refused(
    docker_daemon: DockerDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make(docker_daemon, tmp_path), make(docker_daemon, tmp_path / "other")
    monkeypatch.setattr(own_ids, "_choose", lambda *_users: 0x71000042)
    with leaving_nothing(docker_daemon):
        try:
            await (await first.create(SandboxSpec())).destroy()
            sandbox = await first.create(SandboxSpec())
            with pytest.raises(Unavailable, match="2 containers have user 1895825474"):
                await second.create(SandboxSpec())
            await sandbox.destroy()
        finally:
            await first.close()
            await second.close()


class LyingEngine(ContainerEngine):
    """Leaves the map of ids out of what it asks for."""

    async def _create_container(
        self, spec: SandboxSpec, name: str, profile: Profile, watch: Any
    ) -> Any:
        body = deepcopy(dict(profile.body))
        body["HostConfig"]["UsernsMode"] = self.mode
        return await super()._create_container(spec, name, replace(profile, body=body), watch)

    mode = ""


@real
@pytest.mark.root_only
@pytest.mark.parametrize("mode", ["", "host", "auto:size=70000"])
async def test_a_podman_that_gives_no_range_is_found_out(
    podman_daemon: PodmanDaemon, tmp_path: Path, mode: str
) -> None:
    kind = type("Lying", (LyingEngine,), {"mode": mode})
    engine = kind(
        "podman", tmp_path, container_settings(podman_daemon, own_ids=True, patience_seconds=30.0)
    )
    honest = make(podman_daemon, tmp_path)
    await (await honest.create(SandboxSpec())).destroy()
    await honest.close()
    with leaving_nothing(podman_daemon):
        try:
            with pytest.raises(Unavailable, match="not what was asked for"):
                await engine.create(SandboxSpec())
        finally:
            await engine.close()


@real
@pytest.mark.root_only
async def test_a_podman_without_ids_to_give_says_where_they_are_listed(
    podman_daemon: PodmanDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(podman_daemon, tmp_path)
    await (await engine.create(SandboxSpec())).destroy()
    monkeypatch.setattr("atoll.engines.containers.profile.OWN_RANGE", "auto:size=2000000000")
    with leaving_nothing(podman_daemon):
        with pytest.raises(Unavailable, match="/etc/subuid and /etc/subgid list for `containers`"):
            await engine.create(SandboxSpec())
        await engine.close()


@pytest.mark.any_user
@pytest.mark.parametrize(
    ("options", "more", "kind", "says"),
    [
        (ContainerOptions(volume="team"), {}, Unsupported, "leave workspace, volume"),
        (ContainerOptions(runtime="runsc"), {}, Unsupported, "ask for runc or crun"),
        (ContainerOptions(user="1000"), {}, InvalidRequest, "leave the user out"),
        (None, {"workspace": KeptWorkspace("/kept", 1 << 24)}, Unsupported, "leave workspace"),
    ],
)
async def test_what_does_not_go_with_own_ids_is_refused_before_anything_is_asked(
    options: ContainerOptions | None,
    more: dict[str, Any],
    kind: type[AtollError],
    says: str,
    tmp_path: Path,
) -> None:
    rules = ContainerSettings("unix:///nowhere/docker.sock", volumes=("*",), own_ids=True)
    engine = ContainerEngine("docker", tmp_path, rules)
    assert not {Feature.STOP, Feature.PERSISTENT_WORKSPACES} & engine.features
    with pytest.raises(kind, match=says):
        await engine.create(SandboxSpec(container=options, **more))
    await engine.close()


RANGE = "0 2147483648 65536\n"
STATUS = "Name:\tsteward\nUid:\t{0}\t{0}\t{0}\t{0}\nGid:\t{0}\t{0}\t{0}\t{0}\n"
OUTSIDE = STATUS.format(2147483648 + 65532)


@pytest.mark.any_user
def test_a_range_is_what_the_kernel_tells() -> None:
    found = find_host_ids([RANGE, RANGE], OUTSIDE, USER, "podman")
    assert (found.start, len(found)) == (2147483648, 65536)
    whole = "0 0 4294967295\n"
    user = (0x71000001, 0x71000001)
    assert find_host_ids([whole] * 2, STATUS.format(user[0]), user, "docker") == range(
        user[0], user[0] + 1
    )


@pytest.mark.any_user
@pytest.mark.parametrize(
    ("maps", "status"),
    [
        (["0 0 4294967295\n"] * 2, STATUS.format(65532)),
        (["0 0 65536\n"] * 2, STATUS.format(65532)),
        ([RANGE, "0 3000000000 65536\n"], OUTSIDE),
        ([RANGE + "65536 5 1\n"] * 2, OUTSIDE),
        (["0 2147483648 65535\n"] * 2, OUTSIDE),
        ([RANGE, RANGE], STATUS.format(65532)),
        ([RANGE, RANGE], ""),
        (["", ""], OUTSIDE),
    ],
)
def test_everything_else_is_not_a_range_of_its_own(maps: Sequence[str], status: str) -> None:
    with pytest.raises(Unavailable, match="no ids of its own"):
        find_host_ids(maps, status, USER, "podman")


@pytest.mark.any_user
def test_ids_that_overlap_are_refused() -> None:
    ids = HostIds()
    ids.take("one", range(100, 200))
    with pytest.raises(Unavailable, match="one has some of 199 to 299, too"):
        ids.take("two", range(199, 300))
    ids.take("two", range(200, 300))
    ids.give_back("one")
    ids.take("three", range(100, 200))


@pytest.mark.any_user
@pytest.mark.parametrize(
    ("engine", "options", "lines", "ok", "says"),
    [
        ("docker", (), "", True, "a user each, of the host's"),
        ("docker", ("name=userns",), "", True, "one range for all"),
        ("docker", ("name=rootless",), "", False, "without root"),
        ("podman", ("rootless=true",), "", False, "without root"),
        ("podman", ("rootless=false",), "", False, "for 0 containers"),
        ("podman", (), "containers:2147483648:655360\n", True, "for 10 containers"),
        ("podman", (), "somebody:2147483648:655360\n", False, "for 0 containers"),
    ],
)
def test_the_doctor_tells_whether_they_can_be_had(
    engine: str, options: Sequence[str], lines: str, ok: bool, says: str, tmp_path: Path
) -> None:
    (tmp_path / "subids").write_text(lines)
    check = check_own_ids(engine, {"SecurityOptions": options}, [tmp_path / "subids"] * 2)
    assert check.ok is ok and says in check.found
