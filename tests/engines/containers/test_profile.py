"""Whatever is asked for, a container is of one shape, or it is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engines.containers.engine import ContainerEngine
from atoll.engines.containers.profile import Allowed, Image, Injected, Profile, decide
from atoll.engines.containers.settings import ContainerSettings
from atoll.errors import InvalidRequest, Unsupported
from atoll.model.container import ContainerOptions
from atoll.model.limits import Limits
from atoll.model.sandbox import Mount, SandboxSpec
from tests.engines.containers.requests import specs

IMAGE = Image("sha256:" + "0" * 64, env=("PATH=/opt/bin", "HOME=/root"), volumes=("/data",))
LOCAL = Allowed("docker", ContainerSettings(), socket="/run/docker.sock")


def make(
    spec: SandboxSpec | None = None, allowed: Allowed = LOCAL, image: Image = IMAGE
) -> Profile:
    return decide(
        spec or SandboxSpec(),
        image,
        injected=Injected("atoll-guest-x", "/v/seccomp" if allowed.engine == "podman" else None),
        labels={"atoll.sandbox": "x"},
        allowed=allowed,
    )


def host(profile: Profile) -> dict[str, Any]:
    found: dict[str, Any] = profile.body["HostConfig"]
    return found


@given(spec=specs(), engine=st.sampled_from(["docker", "podman"]))
def test_nothing_that_is_asked_for_makes_a_hole(spec: SandboxSpec, engine: str) -> None:
    profile = make(spec, replace(LOCAL, engine=engine))
    walls = host(profile)
    assert profile.body["Entrypoint"] == ["/opt/atoll/steward"]
    assert profile.body["Cmd"] == [str(profile.limits.open_files), "60"]
    assert walls["CapDrop"] == ["ALL"] and walls["CapAdd"] == []
    assert walls["NetworkMode"] == "none" and not walls["Privileged"] and walls["ReadonlyRootfs"]
    assert walls["Memory"] == walls["MemorySwap"] > 0 and walls["PidsLimit"] > 0 < walls["NanoCpus"]
    assert walls["SecurityOpt"][0] == "no-new-privileges"
    assert walls["SecurityOpt"][1].startswith(("seccomp={", "seccomp=/v/seccomp/own"))
    assert not {"Binds", "Devices", "VolumesFrom", "PortBindings", "UsernsMode"} & set(walls)
    assert 0 not in profile.user
    assert [each["Type"] for each in walls["Mounts"] if each["Target"] != "/workspace"] == [
        "volume"
    ]
    assert all("nosuid,nodev" in each and "size=" in each for each in walls["Tmpfs"].values())


def test_what_the_image_would_start_or_write_to_is_not_there() -> None:
    profile = make()
    assert profile.body["Healthcheck"] == {"Test": ["NONE"]}
    assert "/data" in host(profile)["Tmpfs"]
    assert "PATH=/opt/bin" in profile.body["Env"] and "HOME=/home/sandbox" in profile.body["Env"]


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        (ContainerOptions(user="0"), "allow_root"),
        (ContainerOptions(user="1000:0"), "allow_root"),
        (ContainerOptions(network="host"), "networks"),
        (ContainerOptions(network="bridge"), "networks"),
        (ContainerOptions(volume="somebodys"), "volumes"),
        (ContainerOptions(cap_add=["sys_admin"]), "capabilities"),
        (ContainerOptions(seccomp="other"), "seccomp_profiles"),
        (ContainerOptions(read_only_root=False), "allow_writable_root"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_the_operator_did_not_allow_is_refused(
    options: ContainerOptions, setting: str
) -> None:
    with pytest.raises(InvalidRequest, match=setting):
        make(SandboxSpec(container=options))


def test_what_the_operator_allowed_is_given(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text("{}")
    settings = ContainerSettings(
        networks=("bridge",),
        volumes=("team-*",),
        capabilities=("NET_BIND_SERVICE",),
        seccomp_profiles={"other": tmp_path / "profile.json"},
        allow_root=True,
        allow_writable_root=True,
    )
    options = ContainerOptions(
        user="0:0",
        network="bridge",
        volume="team-a",
        cap_add=["CAP_NET_BIND_SERVICE"],
        seccomp="other",
        read_only_root=False,
        cpu_shares=512,
        labels={"team": "a"},
    )
    profile = make(SandboxSpec(container=options), replace(LOCAL, settings=settings))
    walls = host(profile)
    assert (walls["NetworkMode"], walls["CapAdd"]) == ("bridge", ["NET_BIND_SERVICE"])
    assert walls["CapDrop"] == ["ALL"]
    assert walls["SecurityOpt"] == ["no-new-privileges", "seccomp={}"]
    assert "/workspace" not in walls["Tmpfs"]
    assert {each["Target"]: each["Source"] for each in walls["Mounts"]}["/workspace"] == "team-a"
    assert profile.body["Labels"] == {"team": "a", "atoll.sandbox": "x"}


def test_only_named_images_where_callers_may_name_none() -> None:
    settings = ContainerSettings(images={"base": "debian"}, any_image=False)
    allowed = replace(LOCAL, settings=settings)
    with pytest.raises(InvalidRequest, match="images"):
        make(SandboxSpec(container=ContainerOptions(image="evil")), allowed)
    make(SandboxSpec(container=ContainerOptions(image="debian")), allowed)


OWN_NAMES = (
    "atoll-preset/python",
    "atoll-preset/python:0123456789ab",
    "docker.io/atoll-preset/python",
    "index.docker.io/atoll-template/tool",
    "localhost/atoll-template/tool:latest",
    "evil.example:5000/atoll-preset/python@sha256:" + "0" * 64,
    "evil.example/team/atoll-template/tool",
    "EVIL/ATOLL-PRESET/python",
    "atoll-template",
)


@pytest.mark.parametrize("name", OWN_NAMES)
@pytest.mark.parametrize("pull", ["missing", "always", "never"])
def test_nobody_names_an_image_that_others_get_by_its_template(name: str, pull: Any) -> None:
    options = ContainerOptions(image=name, pull=pull)
    with pytest.raises(InvalidRequest, match="only Atoll gives"):
        make(SandboxSpec(container=options))
    # Whoever has the node in his own program is its operator.
    make(
        SandboxSpec(container=options),
        replace(LOCAL, settings=ContainerSettings(own_program=True)),
    )


def test_what_templates_stand_for_can_be_had() -> None:
    # A template that was built is named by the id of its image.
    make(SandboxSpec(container=ContainerOptions(image=f"sha256:{'0' * 64}", pull="never")))
    settings = ContainerSettings(images={"base": "atoll-template/tool:latest"})
    options = ContainerOptions(image="atoll-template/tool")
    make(SandboxSpec(container=options), replace(LOCAL, settings=settings))
    make(SandboxSpec(), replace(LOCAL, settings=settings))


@pytest.mark.parametrize(
    "name", [None, "own", "own:latest", "docker.io/own", "docker.io/library/own:latest"]
)
def test_an_image_of_the_operators_is_not_fetched_again_for_everybody(name: str | None) -> None:
    settings = ContainerSettings(images={"base": "own"})
    allowed = replace(LOCAL, settings=settings)
    options = ContainerOptions(image=name, pull="always")
    with pytest.raises(InvalidRequest, match="for everybody"):
        make(SandboxSpec(container=options), allowed)
    make(SandboxSpec(container=replace(options, pull="missing")), allowed)
    make(SandboxSpec(container=ContainerOptions(image="own:2", pull="always")), allowed)
    make(
        SandboxSpec(container=options), replace(LOCAL, settings=replace(settings, own_program=True))
    )


@pytest.mark.parametrize(
    "volume",
    [
        "/opt/atoll",
        "/opt/atoll/",
        "/opt/atoll/guest",
        "//opt//atoll/./guest",
        "/opt/x/../atoll/guest",
        "opt/atoll",
    ],
)
def test_an_image_has_no_volume_over_our_own_files(volume: str) -> None:
    with pytest.raises(InvalidRequest, match="own files"):
        make(image=replace(IMAGE, volumes=("/data", volume)))
    make(image=replace(IMAGE, volumes=("/opt", "/opt/atoll-data")))


def test_a_link_leads_no_mount_out_of_what_may_be_mounted(tmp_path: Path) -> None:
    open_to_all, secret = tmp_path / "open", tmp_path / "secret"
    for folder in (open_to_all, secret):
        folder.mkdir()
    (open_to_all / "way").symlink_to(secret)
    allowed = replace(LOCAL, mountable=[open_to_all])
    with pytest.raises(InvalidRequest, match="link"):
        make(SandboxSpec(mounts=[Mount(str(open_to_all / "way"), "/mnt/x")]), allowed)


def test_the_engines_own_socket_is_never_mounted(tmp_path: Path) -> None:
    allowed = replace(LOCAL, mountable=[tmp_path], socket=str(tmp_path / "engine.sock"))
    with pytest.raises(InvalidRequest, match=r"engine\.sock"):
        make(SandboxSpec(mounts=[Mount(str(tmp_path), "/mnt/x")]), allowed)


def test_an_engine_elsewhere_mounts_nothing_of_this_machine(tmp_path: Path) -> None:
    allowed = replace(LOCAL, mountable=[tmp_path], socket=None)
    with pytest.raises(Unsupported, match="TCP"):
        make(SandboxSpec(mounts=[Mount(str(tmp_path), "/mnt/x")]), allowed)


def test_the_operators_runtime_is_used_unless_another_is_asked_for() -> None:
    allowed = replace(LOCAL, settings=ContainerSettings(runtime="runsc"))
    assert make(allowed=allowed).runtime == "runsc"
    spec = SandboxSpec(container=ContainerOptions(runtime="runc"))
    assert make(spec, allowed).runtime == "runc"
    only = replace(LOCAL, settings=ContainerSettings(runtime="runsc", runtimes=("runsc",)))
    with pytest.raises(InvalidRequest, match="runtimes"):
        make(spec, only)


def test_gvisor_counts_processes_itself_and_no_files() -> None:
    allowed = replace(LOCAL, settings=ContainerSettings(runtime="runsc"))
    walls = host(make(SandboxSpec(limits=Limits(processes=8)), allowed))
    assert {"Name": "nproc", "Soft": 8, "Hard": 8} in walls["Ulimits"]
    assert walls["PidsLimit"] >= 1024 and walls["Memory"] > 1 << 30
    with pytest.raises(Unsupported, match="inodes"):
        make(SandboxSpec(limits=Limits(inodes=64)), allowed)
    make(SandboxSpec(limits=Limits(inodes=64, enforcement="best_effort")), allowed)


@pytest.mark.parametrize(
    "options",
    [
        ContainerOptions(user="0"),
        ContainerOptions(read_only_root=False),
        ContainerOptions(volume="mine"),
        ContainerOptions(cap_add=["NET_BIND_SERVICE"]),
    ],
)
def test_only_what_can_be_emptied_as_a_whole_can_be_cleaned(options: ContainerOptions) -> None:
    settings = ContainerSettings(
        allow_root=True,
        allow_writable_root=True,
        volumes=("*",),
        capabilities=("NET_BIND_SERVICE",),
    )
    allowed = replace(LOCAL, settings=settings)
    assert make(SandboxSpec(container=options), allowed).trees is None
    usual = make(SandboxSpec(), allowed).trees
    assert usual is not None
    assert {*host(make())["Tmpfs"], "/workspace", "/dev/mqueue"} == {*usual}
    assert (usual["/tmp"], usual["/home/sandbox"], usual["/workspace"]) == (0o1777, 0o700, 0o755)


def test_podman_gets_its_trees_in_a_way_that_it_knows() -> None:
    limits = Limits(workspace_bytes=1 << 20, inodes=64, enforcement="best_effort")
    profile = make(SandboxSpec(limits=limits), replace(LOCAL, engine="podman"))
    volume = profile.own_volume
    assert volume is not None
    assert "nr_blocks=256,nr_inodes=64,uid=65532,gid=65532" in volume["DriverOpts"]["o"]
    # It would mount these itself, without a size.
    assert {"/run", "/var/tmp"} <= set(host(profile)["Tmpfs"])


def test_podman_promises_no_number_of_files(tmp_path: Path) -> None:
    podman = replace(LOCAL, engine="podman")
    with pytest.raises(Unsupported, match="inodes") as caught:
        make(SandboxSpec(limits=Limits(inodes=64)), podman)
    assert caught.value.details["limits"] == ["inodes"]
    spec = SandboxSpec(limits=Limits(inodes=64, enforcement="best_effort"))
    told = {
        name: ContainerEngine(name, tmp_path)._enforcement(spec, make(spec, allowed))["inodes"]
        for name, allowed in (("podman", podman), ("docker", LOCAL))
    }
    assert told == {"podman": "nothing", "docker": "tmpfs"}
    make(SandboxSpec(), podman)
    make(SandboxSpec(limits=Limits(inodes=64)))
