"""What a container is made as: from a sandbox's spec and the operator's rules to the body of one request.

Pure. Whatever a caller asks for, he gets a container of just this shape, or an error: there is no field here that he can
fill as he likes.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from atoll.engines.containers.image_names import parse_name
from atoll.engines.containers.labels import USER, VOLUME
from atoll.engines.containers.own_ids import OWN_RANGE, check_own_ids
from atoll.engines.containers.seccomp import gvisor_profile, own_profile
from atoll.engines.containers.settings import ContainerSettings
from atoll.engines.containers.workspace_volume import check_kept, describe_volume
from atoll.engines.mount_rules import HeldSources, check_mount
from atoll.errors import InvalidRequest, Unsupported
from atoll.model.container import ContainerOptions, parse_user
from atoll.model.limits import Limits, ResolvedLimits
from atoll.model.sandbox import NETWORK_FILES, Mount, SandboxSpec
from atoll.model.sizes import KIB, MIB

INJECTED = "/opt/atoll"
STEWARD_INSIDE = f"{INJECTED}/steward"
WORKSPACE = "/workspace"
HOME = "/home/sandbox"
PROFILES = "seccomp"  # in the volume of our own files
# Of Python, for kernels; below what is injected.
PACKAGES = "packages"
_SHARED = "/dev/shm"
_QUEUES = "/dev/mqueue"  # an engine mounts it by itself, for everybody inside
_MODES = {"/tmp": "1777", HOME: "0700"}
_LONGEST_TARGET = 4096
_MOST_MOUNTS = 32
_ALL_PROCESSES = 32768
_BLOCK = 4096
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Image:
    """An image as an engine has it: its id says what is in it."""

    id: str
    env: Sequence[str] = ()
    volumes: Sequence[str] = ()
    command: Sequence[str] = ()  # what it runs by itself
    # What is in it, and how much of that its engine's storage counts as written by a container.
    size_bytes: int = 0
    counted_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Injected:
    """The volume with our own files: its name, and where profiles in it are for an engine that takes only paths."""

    volume: str
    profiles: str | None = None


@dataclass(frozen=True, slots=True)
class Allowed:
    """The operator's word: rules of containers, and host directories that may be mounted."""

    engine: str  # docker or podman, which do not take quite the same
    settings: ContainerSettings
    mountable: Sequence[Path] = ()
    # The engine's own socket, if it is on this machine: directories of the host can be mounted only then.
    socket: str | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """One container, decided upon."""

    body: Mapping[str, Any]
    runtime: str | None
    user: tuple[int, int]
    limits: ResolvedLimits
    # Mount points that are expected inside, beyond what every container has.
    targets: frozenset[str]
    engine: str
    # A volume that has to be made for it, and goes with it: name and options.
    own_volume: Mapping[str, Any] | None = None
    # The modes of all that can be written inside, by path; None if that cannot be emptied as a whole.
    trees: Mapping[str, int] | None = None


def decide(
    spec: SandboxSpec,
    image: Image,
    *,
    injected: Injected,
    labels: Mapping[str, str],
    allowed: Allowed,
) -> Profile:
    """Return the container for a sandbox.

    Raises:
        InvalidRequest: the operator does not allow it.
        Unsupported: an engine elsewhere cannot mount what is here.
    """
    options = spec.container or ContainerOptions()
    check_options(options, allowed.settings)
    _check_volumes(image)
    limits = spec.resolve_limits()
    runtime = _runtime(options, allowed.settings)
    if spec.workspace is not None:
        check_kept(options, allowed.engine, runtime, is_local=allowed.socket is not None)
    if allowed.settings.own_ids:
        check_own_ids(spec, options, allowed.engine, runtime)
    _check_inodes(spec.limits, runtime, allowed.engine)
    options = replace(options, user=labels.get(USER, options.user))
    user = parse_user(options.user)
    own = _own_volume(spec, options, limits, user, labels, allowed)
    workspace = options.volume if own is None else own["Name"]
    mounts = [
        _volume(injected.volume, INJECTED, read_only=True),
        *([] if workspace is None else [_volume(workspace, WORKSPACE, read_only=False)]),
        *_binds(spec, allowed),
    ]
    trees = _trees(limits, image, allowed.engine, has_volume=workspace is not None)
    tmpfs = {path: _tmpfs(path, size, limits, user, allowed.engine) for path, size in trees.items()}
    body = {
        **_process(spec, options, image, labels),
        "Cmd": [str(limits.open_files), str(allowed.settings.lease_seconds)],
        "HostConfig": {
            **_limits(limits, options, allowed),
            **_walls(spec, options, allowed),
            **_storage(options, image, allowed.settings),
            "SecurityOpt": [
                "no-new-privileges",
                f"seccomp={_seccomp(options, allowed.settings, injected)}",
            ],
            "Mounts": mounts,
            "Tmpfs": tmpfs,
        },
    }
    targets = {*tmpfs, *(mount["Target"] for mount in mounts)}
    modes = {path: _mode(path, allowed.engine) for path in (*trees, WORKSPACE, _SHARED, _QUEUES)}
    return Profile(
        body,
        runtime,
        user,
        limits,
        frozenset(targets),
        allowed.engine,
        own,
        modes if _is_closed(spec, options, user) else None,
    )


def check_options(options: ContainerOptions, settings: ContainerSettings) -> None:
    """Raise `InvalidRequest` for what the operator does not allow."""
    asked_root = 0 in parse_user(options.user)
    _refuse_unless(settings.allow_root or not asked_root, "user 0", "allow_root")
    named = options.image is not None and options.image not in settings.images.values()
    _refuse_unless(settings.any_image or not named, f"image {options.image!r}", "images")
    if not settings.own_program:
        _check_image(options, settings)
    runtime = options.runtime
    _refuse_unless(
        runtime is None or runtime in settings.runtimes, f"runtime {runtime!r}", "runtimes"
    )
    _refuse_unless(
        options.network in ("none", *settings.networks), f"network {options.network!r}", "networks"
    )
    volume = options.volume
    _refuse_unless(
        volume is None
        or (
            # Those are ours, and every sandbox trusts them.
            not volume.startswith("atoll-")
            and any(fnmatchcase(volume, each) for each in settings.volumes)
        ),
        f"volume {volume!r}",
        "volumes",
    )
    extra = sorted(set(options.cap_add) - set(settings.capabilities))
    _refuse_unless(not extra, f"capability {', '.join(extra)}", "capabilities")
    _refuse_unless(
        options.seccomp is None or options.seccomp in settings.seccomp_profiles,
        f"seccomp profile {options.seccomp!r}",
        "seccomp_profiles",
    )
    _refuse_unless(
        settings.allow_writable_root or options.read_only_root,
        "a root that can be written",
        "allow_writable_root",
    )
    most = settings.root_bytes
    _refuse_unless(
        most is None or options.root_bytes is None or options.root_bytes <= most,
        f"a root that is written to up to {options.root_bytes} bytes",
        "root_bytes",
    )


def _check_image(options: ContainerOptions, settings: ContainerSettings) -> None:
    """Raise `InvalidRequest` if what others get by a name would be a caller's to change."""
    operators = {parse_name(each) for each in settings.images.values()}
    name = None if options.image is None else parse_name(options.image)
    if name is not None and name.is_own and name not in operators:
        raise InvalidRequest(
            f"image {options.image!r} has a name that only Atoll gives; name the template that it is of instead",
            image=options.image,
        )
    if options.pull == "always" and (name is None or name in operators):
        raise InvalidRequest(
            "pull is 'always', but the image is the operator's, and fetching it again would change it for everybody;"
            " leave pull out",
            image=options.image,
        )


def counts_files(runtime: str | None, engine: str) -> bool:
    """Whether all trees of a container are held to a number of files."""
    # Of Podman's trees in memory only a volume takes one.
    return runtime != "runsc" and engine != "podman"


def _check_inodes(limits: Limits, runtime: str | None, engine: str) -> None:
    is_asked = limits.inodes is not None and limits.enforcement == "strict"
    if is_asked and not counts_files(runtime, engine):
        why = (
            "gVisor does not count files"
            if runtime == "runsc"
            else "Podman counts no files of /tmp"
        )
        raise Unsupported(
            f"{why}, so inodes cannot be limited; leave inodes out (memory holds them), or accept"
            ' that with enforcement="best_effort" (--best-effort)',
            limits=["inodes"],
        )


def _check_volumes(image: Image) -> None:
    """Raise `InvalidRequest` for an image that would have something else where our own files are."""
    for volume in image.volumes:
        path = PurePosixPath(posixpath.normpath(f"/{volume.lstrip('/')}"))
        if path.is_relative_to(INJECTED):
            raise InvalidRequest(
                f"the image has a volume at {volume[:120]!r}, where Atoll's own files are; build it without",
                volume=volume[:120],
            )


def _runtime(options: ContainerOptions, settings: ContainerSettings) -> str | None:
    return options.runtime or settings.runtime


def _refuse_unless(ok: bool, what: str, setting: str) -> None:
    if not ok:
        raise InvalidRequest(
            f"{what} is not allowed for containers; the operator allows it in `{setting}`",
            setting=setting,
        )


def _process(
    spec: SandboxSpec, options: ContainerOptions, image: Image, labels: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "Image": image.id,
        "Entrypoint": [STEWARD_INSIDE],
        "Env": _environment(image),
        # Both: an engine gives a user without a group that of root.
        "User": ":".join(map(str, parse_user(options.user))),
        "WorkingDir": WORKSPACE,
        # A container that shares the host's network has the host's name, too.
        **({} if options.network == "host" else {"Hostname": spec.hostname}),
        "Labels": {**options.labels, **labels},
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": False,
        "Tty": False,
        # One of the image's would be run by the engine, beside the steward.
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
    }


def _environment(image: Image) -> list[str]:
    own = {
        "HOME": HOME,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "TMPDIR": "/tmp",
        # Kernels find there what the image may lack.
        "ATOLL_PACKAGES": f"{INJECTED}/{PACKAGES}",
    }
    given = dict(each.partition("=")[::2] for each in image.env)
    whole = {"PATH": _PATH, "LANG": "C.UTF-8", **given, **own}
    return [f"{name}={value}" for name, value in whole.items()]


def _limits(limits: ResolvedLimits, options: ContainerOptions, allowed: Allowed) -> dict[str, Any]:
    gvisor = _runtime(options, allowed.settings) == "runsc"
    memory = limits.memory_bytes + (_gvisor_bytes(limits) if gvisor else 0)
    return {
        "Memory": memory,
        "MemorySwap": memory,  # of both together: no swap
        "NanoCpus": round(limits.cpus * 1e9),
        "CpuShares": options.cpu_shares or 0,
        "PidsLimit": _gvisor_threads(limits) if gvisor else limits.processes,
        "OomKillDisable": False,
        "Ulimits": [
            _ulimit("core", 0),
            _ulimit("fsize", limits.file_bytes),
            # Under gVisor the steward tells by it what belongs to which process.
            _ulimit("memlock", -1 if gvisor else 65536),
            _ulimit("nofile", limits.open_files),
            *_process_limits(limits, allowed.engine, gvisor=gvisor),
        ],
        "ShmSize": limits.shm_bytes,
    }


def _process_limits(
    limits: ResolvedLimits, engine: str, *, gvisor: bool
) -> Sequence[dict[str, Any]]:
    if gvisor:
        # Its kernel counts the sandbox's own; a cgroup counts the host's threads.
        return [_ulimit("nproc", limits.processes)]
    # Podman asks for more than it may have itself, unless it is told; all sandboxes together are counted.
    return [_ulimit("nproc", _ALL_PROCESSES)] if engine == "podman" else []


def _gvisor_bytes(limits: ResolvedLimits) -> int:
    """Return what the second kernel takes itself, so that the sandbox has what it was promised."""
    return 96 * MIB + limits.processes * 512 * KIB


def _gvisor_threads(limits: ResolvedLimits) -> int:
    """Return how many threads of the host a sandbox may have: several for each inside; for the host's sake only."""
    return min(max(1024, (limits.processes + 16) ** 2), 8192)


def _ulimit(name: str, value: int) -> dict[str, Any]:
    return {"Name": name, "Soft": value, "Hard": value}


def _walls(spec: SandboxSpec, options: ContainerOptions, allowed: Allowed) -> dict[str, Any]:
    runtime = _runtime(options, allowed.settings)
    return {
        # What is persistent stays when its program ends, whoever ended it.
        "AutoRemove": not spec.persistent,
        "Privileged": False,
        "ReadonlyRootfs": options.read_only_root,
        "CapDrop": ["ALL"],
        "CapAdd": list(options.cap_add),
        "NetworkMode": options.network,
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "PidMode": "",
        "UTSMode": "",
        # Everything that is printed comes to us; nobody else keeps it, and nothing fills a disk.
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "Init": False,  # the steward reaps
        "PublishAllPorts": False,
        # Podman has one for all.
        **({"Runtime": runtime} if runtime and allowed.engine == "docker" else {}),
        **_sysctls(spec, options, runtime),
        **_own_range(allowed),
    }


def root_bytes(options: ContainerOptions, settings: ContainerSettings) -> int | None:
    """Return what a root may grow by; None if it cannot be written, or nobody has said."""
    return None if options.read_only_root else options.root_bytes or settings.root_bytes


def _storage(
    options: ContainerOptions, image: Image, settings: ContainerSettings
) -> dict[str, Any]:
    size = root_bytes(options, settings)
    return {} if size is None else {"StorageOpt": {"size": str(size + image.counted_bytes)}}


def _own_range(allowed: Allowed) -> dict[str, Any]:
    is_had = allowed.settings.own_ids and allowed.engine == "podman"
    return {"UsernsMode": OWN_RANGE} if is_had else {}


def _sysctls(spec: SandboxSpec, options: ContainerOptions, runtime: str | None) -> dict[str, Any]:
    # gVisor's own kernel has none of them, and the host's network is not a sandbox's to change.
    if options.network == "host" or runtime == "runsc":
        return {}
    return {
        "Sysctls": {
            "net.ipv4.ip_unprivileged_port_start": str(spec.lowest_port),
            "net.ipv6.conf.all.disable_ipv6": "0",
        }
    }


def profile_files(settings: ContainerSettings) -> dict[str, str]:
    """Return all profiles of system calls that a container may have, by the names of their files."""
    own = {"own.json": own_profile(), "gvisor.json": gvisor_profile()}
    given = settings.seccomp_profiles.items()
    return {**own, **{f"operator-{name}.json": path.read_text() for name, path in given}}


def _seccomp(options: ContainerOptions, settings: ContainerSettings, injected: Injected) -> str:
    own = "gvisor" if _runtime(options, settings) == "runsc" else "own"
    name = f"{own}.json" if options.seccomp is None else f"operator-{options.seccomp}.json"
    if injected.profiles is not None:
        return f"{injected.profiles}/{name}"
    return profile_files(settings)[name]


def _trees(
    limits: ResolvedLimits, image: Image, engine: str, *, has_volume: bool
) -> dict[str, int]:
    """Return the sizes of all trees in memory."""
    sizes = {"/tmp": limits.tmp_bytes, HOME: limits.home_bytes}
    if not has_volume:
        sizes[WORKSPACE] = limits.workspace_bytes
    # An engine would give these a volume of the disk each, of any size.
    sizes |= {path: limits.tmp_bytes for path in image.volumes if path != WORKSPACE}
    if engine == "podman":
        # Else it mounts some there by itself, of any size.
        return sizes | {"/run": limits.home_bytes, "/var/tmp": limits.tmp_bytes}
    return {**sizes, _SHARED: limits.shm_bytes}


def _tmpfs(path: str, size: int, limits: ResolvedLimits, user: tuple[int, int], engine: str) -> str:
    run = "noexec" if path == _SHARED else "exec"
    if engine == "podman":
        # It knows neither owners nor numbers of files here.
        return f"rw,{run},nosuid,nodev,notmpcopyup,size={size},mode=1777"
    common = f"rw,{run},nosuid,nodev,nr_inodes={limits.inodes},size={size}"
    if path == _SHARED:
        return f"{common},mode=1777"
    return f"{common},uid={user[0]},gid={user[1]},mode={_MODES.get(path, '0755')}"


def _mode(path: str, engine: str) -> int:
    is_shared = path in (_SHARED, _QUEUES) or (engine == "podman" and path != WORKSPACE)
    return 0o1777 if is_shared else int(_MODES.get(path, "0755"), 8)


def _is_closed(spec: SandboxSpec, options: ContainerOptions, user: tuple[int, int]) -> bool:
    """Whether code inside can leave something only in trees that are the sandbox's own."""
    writable = [each for each in spec.mounts if not each.read_only]
    is_usual = not options.cap_add and options.seccomp is None and options.read_only_root
    has_kept = options.volume is not None or spec.workspace is not None
    return is_usual and 0 not in user and not has_kept and not writable


def _own_volume(
    spec: SandboxSpec,
    options: ContainerOptions,
    limits: ResolvedLimits,
    user: tuple[int, int],
    labels: Mapping[str, str],
    allowed: Allowed,
) -> dict[str, Any] | None:
    """Return a workspace that is kept; or one for Podman: only volumes in memory take an owner and a number of files."""
    name = labels.get(VOLUME, "")
    if spec.workspace is not None:
        return describe_volume(name, spec.workspace, labels)
    if allowed.engine != "podman" or options.volume is not None:
        return None
    # Sizes of volumes are quotas of a disk there, so it is told in blocks.
    held = f"nr_blocks={limits.workspace_bytes // _BLOCK},nr_inodes={limits.inodes}"
    # One with a range of its own Podman gives to whom the user is outside, when it has chosen the range.
    owner = "" if allowed.settings.own_ids else f"uid={user[0]},gid={user[1]},"
    return {
        "Name": name,
        "Driver": "local",
        "DriverOpts": {
            "type": "tmpfs",
            "device": "tmpfs",
            "o": f"{held},{owner}mode=0755,nosuid,nodev",
        },
        "Labels": dict(labels),
    }


def _volume(name: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "volume",
        "Source": name,
        "Target": target,
        "ReadOnly": read_only,
        "VolumeOptions": {"NoCopy": True},
    }


def _binds(spec: SandboxSpec, allowed: Allowed) -> list[dict[str, Any]]:
    if len(spec.mounts) > _MOST_MOUNTS:
        raise InvalidRequest(
            f"{len(spec.mounts)} mounts were asked for, the most is {_MOST_MOUNTS}"
        )
    sockets = [] if allowed.socket is None else [allowed.socket]
    for mount in spec.mounts:
        check_mount(mount, allowed.mountable, longest_target=_LONGEST_TARGET, sockets=sockets)
    mounts = [*spec.mounts, *_network_mounts(spec)]
    if mounts and allowed.socket is None:
        raise Unsupported(
            "directories of this machine cannot be mounted by an engine that is reached over TCP; copy the files in"
        )
    # Refuses links, before anything is asked of the engine, which would follow them.
    with HeldSources(spec.mounts):
        return [_bind(mount) for mount in mounts]


def _network_mounts(spec: SandboxSpec) -> list[Mount]:
    if spec.network_files is None:
        return []
    files = os.path.realpath(spec.network_files)
    return [Mount(files, NETWORK_FILES), Mount(f"{files}/hosts", "/etc/hosts")]


def _bind(mount: Mount) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": os.path.normpath(mount.source),
        "Target": mount.target,
        "ReadOnly": mount.read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }
