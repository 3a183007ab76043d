"""Every difference between what was decided and what is there is told."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from atoll.engines.containers.attestation import attest, differences_inside, differences_outside
from atoll.engines.containers.profile import Allowed, Image, Injected, Profile, decide
from atoll.engines.containers.settings import ContainerSettings
from atoll.engines.steward.hello import Hello
from atoll.errors import Unavailable
from atoll.model.container import ContainerOptions, Runtime
from atoll.model.sandbox import SandboxSpec

Change = Callable[[dict[str, Any]], None]
GVISOR_KERNEL = "#1 SMP Sun Jan 10 15:06:54 PST 2016"
HOST_KERNEL = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.147-1 (2025-08-02)"


@pytest.fixture
def profile() -> Profile:
    return make()


def make(
    engine: str = "docker", runtime: Runtime | None = None, cap_add: tuple[str, ...] = ()
) -> Profile:
    return decide(
        SandboxSpec(container=ContainerOptions(runtime=runtime, cap_add=cap_add)),
        Image("sha256:1"),
        injected=Injected("atoll-guest-x"),
        labels={"atoll.sandbox": "x"},
        allowed=Allowed(engine, ContainerSettings(capabilities=cap_add), socket="/run/docker.sock"),
    )


def described(profile: Profile) -> dict[str, Any]:
    """Return what an honest Docker says of a container."""
    body = deepcopy(dict(profile.body))
    host = body.pop("HostConfig")
    mounts = [
        {"Destination": each["Target"], "Name": each["Source"], "RW": not each["ReadOnly"]}
        for each in host["Mounts"]
    ]
    masked = ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"]
    read_only = ["/proc/bus", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
    return {
        "Image": body["Image"],
        "Path": "/opt/atoll/steward",
        "Args": profile.body["Cmd"],
        "State": {"Running": True, "Pid": 1},
        "Config": body,
        "Mounts": mounts,
        "HostConfig": {**host, "MaskedPaths": masked, "ReadonlyPaths": read_only},
    }


def seen(profile: Profile) -> Hello:
    """Return what is seen in a container that is as it should be."""
    mounts = ["overlay / overlay ro 0 0", "proc /proc/sys proc ro 0 0", "sysfs /sys sysfs ro 0 0"]
    mounts += [f"tmpfs {each} tmpfs rw,nosuid,nodev 0 0" for each in sorted(profile.targets)]
    mounts.append("volume /opt/atoll ext4 ro 0 0")
    limits = profile.limits
    return Hello(
        uid=65532,
        gid=65532,
        no_new_privileges=True,
        uses_marks=False,
        hostname="atoll",
        kernel="",
        status={
            "Uid": "65532 65532 65532 65532",
            "Gid": "65532 65532 65532 65532",
            "Groups": "65532",
            "Seccomp": "2",
            **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd"), "0000000000000000"),
        },
        mounts="\n".join(mounts),
        sizes={
            "/workspace": limits.workspace_bytes,
            "/tmp": limits.tmp_bytes,
            "/home/sandbox": limits.home_bytes,
            "/dev/shm": limits.shm_bytes,
        },
    )


def test_what_is_as_it_should_be_passes(profile: Profile) -> None:
    attest(profile, described(profile), seen(profile))


def in_host(**changed: object) -> Change:
    return lambda facts: facts["HostConfig"].update(changed)


OUTSIDE: dict[str, Change] = {
    "Privileged": in_host(Privileged=True),
    "CapDrop": in_host(CapDrop=[]),
    "CapAdd": in_host(CapAdd=["CAP_SYS_ADMIN"]),
    "no-new-privileges": lambda facts: facts["HostConfig"]["SecurityOpt"].pop(0),
    "seccomp": in_host(SecurityOpt=["no-new-privileges", "seccomp=unconfined"]),
    "apparmor=unconfined": lambda facts: facts["HostConfig"]["SecurityOpt"].append(
        "apparmor=unconfined"
    ),
    "ReadonlyRootfs": in_host(ReadonlyRootfs=False),
    "NetworkMode": in_host(NetworkMode="host"),
    "PidMode": in_host(PidMode="host"),
    "IpcMode": in_host(IpcMode="host"),
    "UTSMode": in_host(UTSMode="host"),
    "UsernsMode": in_host(UsernsMode="host"),
    "CgroupnsMode": in_host(CgroupnsMode="host"),
    "Memory": in_host(Memory=0),
    "MemorySwap": in_host(MemorySwap=2 << 30),
    "NanoCpus": in_host(NanoCpus=0),
    "PidsLimit": in_host(PidsLimit=None),
    "OomKillDisable": in_host(OomKillDisable=True),
    "ulimit nofile": in_host(Ulimits=[]),
    "Devices": in_host(Devices=[{"PathOnHost": "/dev/sda"}]),
    "DeviceCgroupRules": in_host(DeviceCgroupRules=["a *:* rwm"]),
    "VolumesFrom": in_host(VolumesFrom=["other"]),
    "GroupAdd": in_host(GroupAdd=["0"]),
    "PortBindings": in_host(PortBindings={"80/tcp": [{}]}),
    "MaskedPaths": in_host(MaskedPaths=[]),
    "ReadonlyPaths": in_host(ReadonlyPaths=None),
    "tmpfs": in_host(Tmpfs={}),
    "/mnt/host": lambda facts: facts["Mounts"].append({"Destination": "/mnt/host", "RW": True}),
    "/opt/atoll": lambda facts: facts["Mounts"][0].update(RW=True),
    "volume": lambda facts: facts["Mounts"][0].update(Name="another"),
    "image": lambda facts: facts.update(Image="sha256:2"),
    "program": lambda facts: facts.update(Path="/bin/sh"),
    "arguments": lambda facts: facts.update(Args=["-c"]),
    "user": lambda facts: facts["Config"].update(User="0"),
    "terminal": lambda facts: facts["Config"].update(Tty=True),
    "label": lambda facts: facts["Config"].update(Labels={}),
    "does not run": lambda facts: facts["State"].update(Running=False),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_the_engine_left_out_is_told(profile: Profile, name: str) -> None:
    facts = described(profile)
    OUTSIDE[name](facts)
    found = list(differences_outside(profile, facts))
    assert len(found) == 1 or name in ("ulimit nofile", "tmpfs", "seccomp")
    assert name in " ".join(found)
    with pytest.raises(Unavailable, match="removed"):
        attest(profile, facts, seen(profile))


INSIDE: dict[str, dict[str, str]] = {
    "uids": {"Uid": "0 0 0 0"},
    "gids": {"Gid": "65532 0 65532 65532"},
    "groups": {"Groups": "65532 27"},
    "Seccomp": {"Seccomp": "0"},
    "CapEff": {"CapEff": "00000000a80425fb"},
    "CapBnd": {"CapBnd": "00000000a80425fb"},
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_is_seen_inside_is_told(profile: Profile, name: str) -> None:
    hello = seen(profile)
    hello = replace(hello, status={**hello.status, **INSIDE[name]})
    (found,) = differences_inside(profile, hello)
    assert found.startswith(name)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("/ overlay ro", "/ overlay rw", "root can be written"),
        ("/opt/atoll ext4 ro", "/opt/atoll ext4 rw", "/opt/atoll can be written"),
        ("/proc/sys proc ro", "/proc/sys proc rw", "/proc/sys can be written"),
        ("tmpfs /tmp tmpfs", "tmpfs /etc tmpfs", "/tmp is not mounted"),
        ("tmpfs /tmp tmpfs", "tmpfs /etc tmpfs", "/etc is mounted"),
    ],
)
def test_mounts_that_are_not_as_asked_for_are_told(
    profile: Profile, before: str, after: str, told: str
) -> None:
    hello = seen(profile)
    hello = replace(hello, mounts=hello.mounts.replace(before, after))
    assert told in "; ".join(differences_inside(profile, hello))


def test_new_privileges_are_told(profile: Profile) -> None:
    hello = replace(seen(profile), no_new_privileges=False)
    assert list(differences_inside(profile, hello)) == ["it could get new privileges"]


def test_a_tree_that_is_too_large_is_told(profile: Profile) -> None:
    hello = seen(profile)
    hello = replace(hello, sizes={**hello.sizes, "/workspace": 1 << 40})
    assert "/workspace holds" in "; ".join(differences_inside(profile, hello))


# --- gVisor ----------------------------------------------------------------------------------------------


def test_what_runs_under_gvisor_passes() -> None:
    profile = make(runtime="runsc")
    attest(profile, described(profile), replace(seen(profile), kernel=GVISOR_KERNEL))


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize("kernel", [HOST_KERNEL, ""])
def test_a_runsc_that_is_something_else_is_told(engine: str, kernel: str) -> None:
    profile = make(engine, "runsc")
    found = "; ".join(differences_inside(profile, replace(seen(profile), kernel=kernel)))
    assert "which is not gVisor's" in found


def test_a_runsc_that_loads_no_filter_is_told_with_the_way_out() -> None:
    profile = make(runtime="runsc")
    hello = replace(seen(profile), kernel=GVISOR_KERNEL)
    hello = replace(hello, status={**hello.status, "Seccomp": "0"})
    (found,) = differences_inside(profile, hello)
    assert found.startswith("Seccomp is '0'") and "--oci-seccomp" in found


@pytest.mark.parametrize("told", ["runc", "", None])
def test_a_runtime_of_podmans_that_is_another_is_told(told: str | None) -> None:
    profile = make("podman", "runsc")
    facts = {**described(profile), "OCIRuntime": told}
    assert any(each.startswith("OCIRuntime") for each in differences_outside(profile, facts))
    facts["OCIRuntime"] = "runsc"
    assert not [each for each in differences_outside(profile, facts) if "Runtime" in each]


# --- added capabilities ----------------------------------------------------------------------------------

ADDED = ("CHOWN", "NET_BIND_SERVICE")
ADDED_MASK = 0x401


@pytest.mark.parametrize("held", [0, 0x400, ADDED_MASK])
def test_capabilities_that_were_asked_for_pass(held: int) -> None:
    profile = make(cap_add=ADDED)
    sets = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd"), f"{held:016x}")
    hello = seen(profile)
    attest(profile, described(profile), replace(hello, status={**hello.status, **sets}))


@pytest.mark.parametrize("name", ["CapInh", "CapPrm", "CapEff", "CapBnd"])
@pytest.mark.parametrize("held", ["000001ffffffffff", "0000000000200401", "8000000000000000", None])
def test_more_capabilities_than_were_asked_for_are_told(name: str, held: str | None) -> None:
    profile = make(cap_add=ADDED)
    status = {**seen(profile).status, name: held}
    if held is None:
        del status[name]
    hello = replace(seen(profile), status={key: str(each) for key, each in status.items()})
    (found,) = differences_inside(profile, hello)
    assert found.startswith(name)


def test_podman_names_only_what_it_adds_to_its_own_defaults() -> None:
    profile = make("podman", cap_add=ADDED)
    facts = described(profile)
    facts["HostConfig"]["CapAdd"] = []
    assert not [each for each in differences_outside(profile, facts) if "CapAdd" in each]
    facts["HostConfig"]["CapAdd"] = ["CAP_SYS_ADMIN"]
    assert [each for each in differences_outside(profile, facts) if "CapAdd" in each]
