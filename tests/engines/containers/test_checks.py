"""What the doctor says of a container engine: what is well, what is not, and the cure."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from atoll.engines.containers import checks
from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.runc_bugs import RELEASED, RUNC_BUGS, known_bugs, parse_version
from atoll.engines.containers.settings import ContainerSettings
from atoll.engines.contract import Check
from atoll.errors import InvalidRequest, Unavailable
from atoll.model.sandbox import SandboxSpec
from tests.engine_fixtures import DATA_DIR
from tools.container_daemons import DockerDaemon, PodmanDaemon
from tools.container_images import import_image

# As a Docker of today answers.
VERSION: Mapping[str, Any] = {
    "Version": "29.0.1",
    "ApiVersion": "1.52",
    "Components": [{"Name": "Engine", "Version": "29.0.1"}, {"Name": "runc", "Version": "1.3.3"}],
}
INFO: Mapping[str, Any] = {
    "Runtimes": {
        "runc": {"path": "runc"},
        "runsc": {
            "path": "/usr/bin/runsc",
            "runtimeArgs": ["--platform=systrap", "--network=none", "--oci-seccomp"],
        },
    },
    "DefaultRuntime": "runc",
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
    "MemoryLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "CgroupVersion": "2",
    "CgroupDriver": "systemd",
    "Driver": "overlay2",
}


@dataclass(frozen=True)
class Sick:
    """An engine with one thing wrong, and what the doctor has to say."""

    name: str
    says: str
    fix: str
    required: bool
    version: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    runtime: str | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.says}"


def runsc(*flags: str) -> Mapping[str, Any]:
    facts = {"path": "/bin/runsc", **({"runtimeArgs": flags} if flags else {})}
    return {"Runtimes": {"runc": {}, "runsc": facts}}


def parts(name: str, version: str) -> Mapping[str, Any]:
    return {"Components": [{"Name": name, "Version": version}]}


SICK_ENGINES = [
    Sick("API version", "1.39", "Docker 19.03", True, version={"ApiVersion": "1.39"}),
    Sick("runtime", "runc, runsc; by default runc", "register crun", True, runtime="crun"),
    Sick("runsc", "no filter of system calls", "--oci-seccomp", False, info=runsc()),
    Sick("runsc", "no filter", "--oci-seccomp", True, info=runsc("--debug"), runtime="runsc"),
    Sick(
        "runsc",
        "the host's own network",
        "--network=none",
        False,
        info=runsc("--oci-seccomp", "--network=host"),
    ),
    Sick(
        "runc version",
        "1.1.5+ds1: CVE-2024-21626",
        "distributions mend older ones",
        False,
        version=parts("runc", "1.1.5+ds1"),
    ),
    Sick(
        "runc version",
        "1.3.2: CVE-2025-31133",
        "upgrade runc",
        False,
        version=parts("OCI Runtime (runc)", "runc version 1.3.2\ncommit: x\nspec: 1.2.1"),
    ),
    Sick("seccomp", "none", "built with seccomp", True, info={"SecurityOptions": []}),
    Sick("cgroup mode", "v2 by none", "delegated", True, info={"CgroupDriver": "none"}),
    Sick("cgroup limits", "missing: memory", "controllers", True, info={"MemoryLimit": False}),
    Sick("cgroup limits", "missing: processes", "controllers", True, info={"PidsLimit": False}),
    Sick("cgroup limits", "missing: cpus", "controllers", True, info={"CpuCfsQuota": False}),
    Sick("storage driver", "vfs", "overlays can lie on", False, info={"Driver": "vfs"}),
]


EXAMINED = {check.name for check in checks.examine(VERSION, INFO, None)}


def find(found: Sequence[Check], name: str) -> Check:
    return next(check for check in found if check.name == name)


def test_a_healthy_engine_passes_every_check() -> None:
    for runtime in (None, "runc", "runsc"):
        assert [each for each in checks.examine(VERSION, INFO, runtime) if not each.ok] == []
    assert find(checks.examine(VERSION, INFO, None), "cgroup mode").found == "v2 by systemd"
    told = find(checks.examine(VERSION, INFO, None), "runsc").found
    assert told == "/usr/bin/runsc, platform systrap"


@pytest.mark.parametrize("sick", SICK_ENGINES, ids=str)
def test_a_sick_engine_is_told_its_sickness_and_the_cure(sick: Sick) -> None:
    found = checks.examine({**VERSION, **sick.version}, {**INFO, **sick.info}, sick.runtime)
    check = find(found, sick.name)
    assert (check.ok, check.required) == (False, sick.required)
    assert sick.says in check.found
    assert sick.fix in check.fix
    assert [each.name for each in found if not each.ok] == [sick.name]


@pytest.mark.parametrize(
    ("is_local", "runtime", "missing", "says"),
    [
        (True, None, [], "kept: an ext4 image on a loop device"),
        (True, None, ["mkfs.ext4"], "for lack of mkfs.ext4"),
        (True, "runsc", [], "for lack of runtime runc or crun"),
        (False, None, [], "for lack of an engine on this machine"),
    ],
)
def test_what_holds_workspaces_to_their_sizes_is_named(
    is_local: bool, runtime: str | None, missing: Sequence[str], says: str
) -> None:
    check = checks.check_workspaces(is_local, runtime, missing)
    assert "in memory: tmpfs of that size" in check.found and says in check.found
    assert check.ok == ("loop device" in says) and not check.required


@pytest.mark.parametrize(
    ("driver", "disk", "says", "ok"),
    [
        ("overlay2", "extfs", "overlay2 on extfs holds", False),
        ("overlay2", "xfs", "pquota", True),
        ("btrfs", "btrfs", "its own quotas", True),
        ("vfs", None, "an unknown file system", False),
    ],
)
def test_what_holds_a_root_that_can_be_written_is_named(
    driver: str, disk: str | None, says: str, ok: bool
) -> None:
    status = [] if disk is None else [["Backing Filesystem", disk], ["Supports d_type", "true"]]
    check = checks.check_root_quota({"Driver": driver, "DriverStatus": status})
    assert says in check.found
    assert check.ok == ok and not check.required


def test_every_check_is_seen_failing() -> None:
    assert {sick.name for sick in SICK_ENGINES} == EXAMINED


def test_an_engine_that_tells_nothing_is_examined_without_an_error() -> None:
    assert len(checks.examine({}, {}, None)) == len(checks.examine(VERSION, INFO, None))


async def test_an_engine_that_is_not_there_is_told_with_the_way_out(tmp_path: Path) -> None:
    settings = ContainerSettings(endpoint=f"unix://{tmp_path}/none.sock")
    engine = ContainerEngine("docker", tmp_path, settings)
    missing = (await engine.check())[0]
    assert (missing.ok, missing.required) == (False, True)
    assert "none.sock" in missing.found and "start docker" in missing.fix
    with pytest.raises(Unavailable, match=r"none\.sock"):
        await engine.create(SandboxSpec())
    await engine.close()


async def test_an_address_of_another_kind_is_refused(tmp_path: Path) -> None:
    engine = ContainerEngine("docker", tmp_path, ContainerSettings(endpoint="ftp://x"))
    with pytest.raises(InvalidRequest, match="unix:///path or tcp://host:port"):
        await engine.create(SandboxSpec())
    await engine.close()


@pytest.mark.parametrize(("mode", "ok"), [(0o660, True), (0o666, False)])
def test_a_socket_that_everybody_can_write_is_told(tmp_path: Path, mode: int, ok: bool) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(mode)
        check = checks.check_socket(f"unix://{path}", str(path))
    assert (check.ok, check.required) == (ok, False)
    assert check.fix == f"chmod o-rw {path}"


def test_an_engine_behind_tcp_has_no_socket_to_look_at() -> None:
    assert checks.check_socket("tcp://engine:2376", None).found == "tcp://engine:2376"


# --- runc ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bug", RUNC_BUGS, ids=lambda bug: str(bug.cve))
def test_each_bug_of_runc_ends_with_its_fix(bug: Any) -> None:
    for first_good in bug.mended.values():
        assert not bug.affects(first_good)
        assert bug.affects((*first_good[:2], first_good[2] - 1, RELEASED))
    assert bug.affects(bug.since)
    assert not bug.affects(bug.fixed)
    assert not bug.affects((2, 0, 0, RELEASED))


@pytest.mark.parametrize(
    ("version", "count"),
    [
        ("1.0.0-rc6", 5),
        ("1.0.0~rc93+ds1", 5),
        ("1.0.0-rc95", 4),
        ("1.1.11", 4),
        ("1.1.12", 3),
        ("1.2.0-rc.1", 3),
        ("1.2.7", 3),
        ("1.2.8", 0),
        ("1.3.3-rc.1", 3),
        ("1.3.3", 0),
        ("1.4.0-rc.2", 3),
        ("1.4.0-rc.3", 0),
        ("1.4.0", 0),
        ("unknown", 0),
    ],
)
def test_which_bugs_a_version_has(version: str, count: int) -> None:
    assert len(known_bugs(version)) == count


def test_versions_are_read_from_what_engines_say() -> None:
    assert parse_version("runc version 1.1.5+ds1") == (1, 1, 5, RELEASED)
    assert parse_version("1.4.0-rc.3") == (1, 4, 0, 3)


# --- real daemons ----------------------------------------------------------------------------------------


def test_the_doctor_examines_engines_that_run(
    docker_daemon: DockerDaemon, podman_daemon: PodmanDaemon
) -> None:
    daemons = (docker_daemon, podman_daemon)
    variables = {f"ATOLL_CONTAINERS__{each.name.upper()}_ENDPOINT": each.url for each in daemons}
    # Both call it the same.
    (image,) = {import_image(each, "base") for each in daemons}
    variables["ATOLL_CONTAINERS__IMAGES"] = f"base={image}"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "atoll", "doctor", "--json"],
        env={"PATH": os.environ["PATH"], "ATOLL_DATA": str(DATA_DIR), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    engines = json.loads(done.stdout)["engines"]
    for daemon in daemons:
        told = {check["name"]: check for check in engines[daemon.name]}
        # Whoever has his own program is its operator, who may write to roots.
        beside = {"socket", "steward", "way out", "workspace sizes", "root quota"}
        assert set(told) == {*beside, *EXAMINED}
        assert "ext4 image on a loop device" in told["workspace sizes"]["found"]
        assert [each for each in told.values() if each["required"] and not each["ok"]] == []
        assert daemon.url in told["socket"]["found"]
        parts = daemon.call("GET", "/version")["Components"]
        number = next(each["Version"] for each in parts if "runc" in each["Name"])
        assert told["runc version"]["ok"] is not bool(known_bugs(number))
