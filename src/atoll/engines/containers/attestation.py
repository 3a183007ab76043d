"""Whether a container is what was decided: what the engine says it made, and what is seen from inside.

Before anything of the user's runs. An engine, or something between it and us, that leaves a part of the wall out is found
out here, and the sandbox is never handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from atoll.engines.containers.own_ids import OWN_RANGE_TOLD
from atoll.engines.containers.profile import STEWARD_INSIDE, WORKSPACE, Profile
from atoll.engines.steward.hello import Hello
from atoll.errors import Unavailable

Facts = Mapping[str, Any]

# What has to be empty, because nobody is ever given any of it.
_NEVER = (
    "Privileged", "Devices", "DeviceCgroupRules", "DeviceRequests", "VolumesFrom", "Links", "GroupAdd",
    "PortBindings", "PublishAllPorts", "ExtraHosts", "OomKillDisable", "Cgroup", "VolumeDriver",
)  # fmt: skip
_AS_ASKED = (
    "ReadonlyRootfs", "NetworkMode", "CgroupnsMode", "PidMode", "UTSMode", "Memory", "CpuShares", "PidsLimit",
)  # fmt: skip
_OTHERS = ("host", "container:", "ns:")  # what a namespace must not be shared with
_MASKED = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware")
_READ_ONLY = ("/proc/bus", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
# What engines mount into every container, and what they put in place of what is masked.
_USUAL_MOUNTS = (
    "/",
    "/dev",
    "/proc",
    "/sys",
    "/etc/resolv.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/passwd",
    "/etc/group",
    "/run/.containerenv",
)
_USUAL_TREES = ("/dev/", "/proc/", "/sys/")
_TREES = {
    WORKSPACE: "workspace_bytes",
    "/tmp": "tmp_bytes",
    "/home/sandbox": "home_bytes",
    "/dev/shm": "shm_bytes",
}
_PAGE = 4096
_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd")
# In the kernel's order: each is the bit of its place.
_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip


def attest(profile: Profile, facts: Facts, hello: Hello) -> None:
    """Raise `Unavailable` that names every difference; `facts` is what the engine says of the started container."""
    found = [*differences_outside(profile, facts), *differences_inside(profile, hello)]
    if found:
        raise Unavailable(
            f"the container is not what was asked for: {'; '.join(found)}; it was removed",
            differences=found,
        )


def differences_outside(profile: Profile, facts: Facts) -> Iterator[str]:
    """Yield where the engine's own description of a started container differs from the profile."""
    yield from differences_in_shape(profile, facts)
    state = facts.get("State") or {}
    if not state.get("Running"):
        yield f"it does not run but is {state.get('Status')!r}"


def differences_in_shape(profile: Profile, facts: Facts) -> Iterator[str]:
    """Yield where the engine's own description of a container, started or not, differs from the profile."""
    body, host = profile.body, facts["HostConfig"]
    asked = body["HostConfig"]
    yield from _process_differences(body, facts)
    for name in _NEVER:
        if host.get(name):
            yield f"it has {name} {_short(host[name])}"
    for name in _AS_ASKED:
        yield from _differs(name, asked[name], host.get(name), _loosely)
    # Which ids that are is seen from outside, when it runs.
    users = OWN_RANGE_TOLD if "UsernsMode" in asked else ""
    yield from _differs("UsernsMode", users, host.get("UsernsMode") or "")
    yield from _differs("StorageOpt", asked.get("StorageOpt", {}), host.get("StorageOpt") or {})
    if str(host.get("IpcMode")).startswith(_OTHERS):
        yield f"IpcMode is {host['IpcMode']!r}, asked for was {asked['IpcMode']!r}"
    yield from _swap_differences(asked, host)
    yield from _cpu_differences(asked, host)
    yield from _capability_differences(profile, host)
    yield from _security_differences(asked, host)
    if profile.engine == "docker":
        yield from _path_differences(host)
    yield from _ulimit_differences(asked, host)
    yield from _mount_differences(profile, facts)
    if "Runtime" in asked:
        yield from _differs("Runtime", asked["Runtime"], host.get("Runtime"))
    elif profile.runtime is not None:
        # Podman is not asked for one by request, but says which one a container has.
        yield from _differs("OCIRuntime", profile.runtime, facts.get("OCIRuntime"))


def _process_differences(body: Facts, facts: Facts) -> Iterator[str]:
    config = facts["Config"]
    yield from _differs("image", _bare(body["Image"]), _bare(facts.get("Image", "")))
    yield from _differs("program", STEWARD_INSIDE, facts.get("Path"))
    yield from _differs("arguments", body["Cmd"], facts.get("Args"))
    yield from _differs("user", body["User"], config.get("User"))
    yield from _differs("terminal", False, bool(config.get("Tty")))
    if "Hostname" in body:
        yield from _differs("hostname", body["Hostname"], config.get("Hostname"))
    labels = config.get("Labels") or {}
    for name, value in body["Labels"].items():
        yield from _differs(f"label {name}", value, labels.get(name))


def _swap_differences(asked: Facts, host: Facts) -> Iterator[str]:
    swap = host.get("MemorySwap")
    # Without accounting of swap the kernel holds memory alone, and an engine says -1.
    if swap not in (asked["MemorySwap"], -1):
        yield f"MemorySwap is {swap}, asked for was {asked['MemorySwap']}"


def _cpu_differences(asked: Facts, host: Facts) -> Iterator[str]:
    nano = host.get("NanoCpus") or 0
    if not nano and host.get("CpuPeriod"):
        nano = host["CpuQuota"] * 10**9 // host["CpuPeriod"]
    # Quotas are in microseconds of a period.
    if abs(nano - asked["NanoCpus"]) > 20_000:
        yield f"NanoCpus is {nano}, asked for was {asked['NanoCpus']}"


def _capability_differences(profile: Profile, host: Facts) -> Iterator[str]:
    added = {str(each).removeprefix("CAP_") for each in host.get("CapAdd") or ()}
    asked = set(profile.body["HostConfig"]["CapAdd"])
    dropped = {str(each).upper() for each in host.get("CapDrop") or ()}
    # Podman lists what it came to beside its own defaults; what is left is seen from inside.
    yield from _differs("CapAdd", asked, added if profile.engine == "docker" else added | asked)
    if profile.engine == "docker" and dropped != {"ALL"}:
        yield f"CapDrop is {sorted(dropped)}, asked for was ALL"


def _security_differences(asked: Facts, host: Facts) -> Iterator[str]:
    found = {str(each).removesuffix(":true") for each in host.get("SecurityOpt") or ()}
    for option in asked["SecurityOpt"]:
        if option not in found:
            yield f"security option {_short(option)} is missing"
    for option in sorted(found - set(asked["SecurityOpt"])):
        yield f"it has security option {_short(option)}"


def _path_differences(host: Facts) -> Iterator[str]:
    for name, wanted in (("MaskedPaths", _MASKED), ("ReadonlyPaths", _READ_ONLY)):
        missing = set(wanted) - set(host.get(name) or ())
        if missing:
            yield f"{name} lacks {', '.join(sorted(missing))}"


def _ulimit_differences(asked: Facts, host: Facts) -> Iterator[str]:
    found = {
        str(each["Name"]).lower().removeprefix("rlimit_"): (each["Soft"], each["Hard"])
        for each in host.get("Ulimits") or ()
    }
    for each in asked["Ulimits"]:
        yield from _differs(
            f"ulimit {each['Name']}", (each["Soft"], each["Hard"]), found.get(each["Name"])
        )


def _mount_differences(profile: Profile, facts: Facts) -> Iterator[str]:
    asked = profile.body["HostConfig"]
    wanted = {mount["Target"]: mount for mount in asked["Mounts"]}
    found = {mount["Destination"]: mount for mount in facts.get("Mounts") or ()}
    for target, mount in wanted.items():
        yield from _one_mount(target, mount, found.get(target))
    for target in sorted(set(found) - set(wanted) - set(asked["Tmpfs"])):
        yield f"{target} is mounted, which nobody asked for"
    missing = set(asked["Tmpfs"]) - set(facts["HostConfig"].get("Tmpfs") or {})
    if missing:
        yield f"there is no tmpfs on {', '.join(sorted(missing))}"


def _one_mount(target: str, wanted: Facts, found: Facts | None) -> Iterator[str]:
    if found is None:
        yield f"{target} is not mounted"
        return
    name = found.get("Name") if wanted["Type"] == "volume" else found.get("Source")
    yield from _differs(f"{wanted['Type']} at {target}", wanted["Source"], name)
    yield from _differs(f"writing to {target}", not wanted["ReadOnly"], bool(found.get("RW")))


def differences_inside(profile: Profile, hello: Hello) -> Iterator[str]:
    """Yield where what the steward saw differs from the profile."""
    uid, gid = profile.user
    status = hello.status
    yield from _differs("uids", [uid] * 4, _numbers(status.get("Uid")))
    yield from _differs("gids", [gid] * 4, _numbers(status.get("Gid")))
    yield from _differs("groups", set(), set(_numbers(status.get("Groups"))) - {gid})
    if _is_gvisor(profile) and not hello.is_gvisor:
        yield f"its kernel says {_short(hello.kernel.strip())}, which is not gVisor's"
    yield from _privilege_differences(profile, hello)
    if "Hostname" in profile.body:
        yield from _differs("hostname inside", profile.body["Hostname"], hello.hostname)
    yield from _tree_differences(profile, hello)


def _privilege_differences(profile: Profile, hello: Hello) -> Iterator[str]:
    if hello.status.get("Seccomp") != "2":
        yield f"Seccomp is {hello.status.get('Seccomp')!r}, asked for was '2'{_seccomp_hint(profile)}"
    if not hello.no_new_privileges:
        yield "it could get new privileges"
    allowed = _mask(profile.body["HostConfig"]["CapAdd"])
    for name in _CAPABILITY_SETS:
        # One that is not told counts as all. A user who is not root may be given less than was asked for.
        found = int(hello.status.get(name, "-1"), 16)
        if found & ~allowed:
            yield f"{name} is {found:#x}, asked for was {allowed:#x}"


def _seccomp_hint(profile: Profile) -> str:
    # A runsc loads the filter of a container's options only if it is told to.
    return " (give runsc the flag --oci-seccomp)" if _is_gvisor(profile) else ""


def _mask(capabilities: Sequence[str]) -> int:
    """Return the bits of capabilities; one that is not known has none."""
    return sum(1 << _CAPABILITIES.index(each) for each in capabilities if each in _CAPABILITIES)


def _is_gvisor(profile: Profile) -> bool:
    return profile.runtime == "runsc"


def _tree_differences(profile: Profile, hello: Hello) -> Iterator[str]:
    mounts = {line[1]: line for line in (each.split() for each in hello.mounts.splitlines())}
    root = mounts.get("/")
    if profile.body["HostConfig"]["ReadonlyRootfs"] and (root is None or not _is_read_only(root)):
        yield "its root can be written"
    yield from _kernel_path_differences(profile, mounts)
    for target in sorted(set(mounts) - profile.targets - set(_USUAL_MOUNTS)):
        if not target.startswith(_USUAL_TREES):
            yield f"{target} is mounted inside, which nobody asked for"
    tmpfs = profile.body["HostConfig"]["Tmpfs"]
    for path, limit in _TREES.items():
        if path in tmpfs or (path == WORKSPACE and profile.own_volume) or path == "/dev/shm":
            yield from _size_differences(path, getattr(profile.limits, limit), hello)
    for target in sorted(profile.targets):
        if target not in mounts and not target.startswith("/dev/"):
            yield f"{target} is not mounted inside"
    for mount in profile.body["HostConfig"]["Mounts"]:
        line = mounts.get(mount["Target"])
        if mount["ReadOnly"] and line is not None and not _is_read_only(line):
            yield f"{mount['Target']} can be written"


def _kernel_path_differences(
    profile: Profile, mounts: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    # gVisor's are of a kernel of its own; that it is one has been seen.
    if not _is_gvisor(profile):
        for path in ("/proc/sys", "/sys"):
            if path not in mounts or not _is_read_only(mounts[path]):
                yield f"{path} can be written"


def _size_differences(path: str, limit: int, hello: Hello) -> Iterator[str]:
    size = hello.sizes.get(path, 0)
    if not 0 < size <= limit + _PAGE:
        yield f"{path} holds {size} bytes, asked for was {limit}"


def _is_read_only(line: Sequence[str]) -> bool:
    return "ro" in line[3].split(",")


def _numbers(text: str | None) -> list[int]:
    return [int(each) for each in (text or "").split()]


def _differs(
    name: str, asked: object, found: object, same: Callable[[object, object], bool] | None = None
) -> Iterator[str]:
    if not (same(asked, found) if same else asked == found):
        yield f"{name} is {_short(found)}, asked for was {_short(asked)}"


def _loosely(asked: object, found: object) -> bool:
    """Engines leave out what is empty, and say "private" where others say nothing."""
    return asked == found or {asked or "private", found or "private"} == {"private"}


def _bare(image: str) -> str:
    return image.removeprefix("sha256:")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
