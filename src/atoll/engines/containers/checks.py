"""What a container engine gives us, for `atoll doctor`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.engines.containers.client import EngineClient
from atoll.engines.containers.own_ids import IDS_OF_EACH, is_mapped
from atoll.engines.containers.root_quota import ROOT_QUOTA_FIX, root_quota
from atoll.engines.containers.runc_bugs import known_bugs
from atoll.engines.containers.settings import ContainerSettings
from atoll.engines.contract import Check
from atoll.engines.steward import STEWARD
from atoll.engines.workspace_images import missing_for_images
from atoll.errors import AtollError

Facts = Mapping[str, Any]

SUBORDINATE_IDS = (Path("/etc/subuid"), Path("/etc/subgid"))

_OLDEST_API = (1, 40)
# Podman tells the one it uses so.
_PODMAN_RUNTIME = re.compile(r"OCI Runtime \((\w+)\)")


async def run(client: EngineClient, settings: ContainerSettings) -> Sequence[Check]:
    """Return every check; the engine works if all required ones are ok."""
    try:
        version: Facts = await client.ask("tell its version", lambda docker: docker.version())
        info: Facts = await client.ask("describe itself", lambda docker: docker.system.info())
    except AtollError as error:
        fix = f"start {client.name}, and let this user reach its socket, or set another endpoint"
        return [Check("socket", False, error.message, fix), check_steward()]
    return [
        check_socket(client.endpoint, client.socket),
        check_steward(),
        *examine(version, info, settings.runtime),
        check_workspaces(client.socket is not None, settings.runtime, missing_for_images()),
        *([check_root_quota(info)] if settings.allow_writable_root else ()),
        *([check_own_ids(client.name, info)] if settings.own_ids else ()),
    ]


def examine(version: Facts, info: Facts, runtime: str | None) -> Sequence[Check]:
    """Return what an engine says of itself, measured by what containers need."""
    return [
        check_api(version),
        check_runtime(info, runtime),
        check_runsc(version, info, runtime),
        check_runc(version),
        check_seccomp(info),
        check_cgroup_mode(info),
        check_limits(info),
        check_storage(info),
    ]


def check_socket(endpoint: str, path: str | None) -> Check:
    """Who reaches the socket is root: it must not be everybody."""
    if path is None:
        return Check("socket", True, endpoint)
    everybody = bool(os.stat(path).st_mode & stat.S_IWOTH)
    found = f"{endpoint}, which every user of this machine can write" if everybody else endpoint
    return Check("socket", not everybody, found, f"chmod o-rw {path}", required=False)


def check_steward() -> Check:
    """The program that goes into every container was built."""
    fix = "install the package again with a C compiler present"
    return Check("steward", STEWARD.exists(), "built" if STEWARD.exists() else "missing", fix)


def check_api(version: Facts) -> Check:
    """The engine speaks a version of the API that has all that a container is made with."""
    found = str(version.get("ApiVersion", "unknown"))
    oldest = ".".join(map(str, _OLDEST_API))
    return Check(
        "API version",
        _numbers(found) >= _OLDEST_API,
        f"{found} ({version.get('Version', 'unknown')})",
        f"upgrade the engine to one with API {oldest} (Docker 19.03, Podman 3) or newer",
    )


def check_runtime(info: Facts, wanted: str | None) -> Check:
    """The operator's runtime is one of those that the engine has."""
    names = sorted(info.get("Runtimes") or {})
    default = str(info.get("DefaultRuntime", "unknown"))
    found = f"{', '.join(names)}; by default {default}"
    fix = f"register {wanted} as a runtime with the engine, or set another"
    return Check("runtime", wanted is None or wanted in names, found, fix)


def check_runsc(version: Facts, info: Facts, wanted: str | None) -> Check:
    """A runsc that the engine has is told to load our filter, and to stay out of the host's network."""
    facts: Facts = (info.get("Runtimes") or {}).get("runsc") or {}
    path = str(facts.get("path", "none"))
    if not facts or _is_podman(version):
        # Podman does not tell what it calls it with; kernel and filter of each sandbox are looked at before it is handed over.
        return Check("runsc", True, path, required=False)
    flags = [str(each).lstrip("-") for each in facts.get("runtimeArgs") or ()]
    platform = next((each for each in flags if each.startswith("platform=")), "platform=default")
    wrong = [
        *([] if {"oci-seccomp", "oci-seccomp=true"} & {*flags} else ["no filter of system calls"]),
        *(["the host's own network"] if "network=host" in flags else []),
    ]
    found = f"{path}, {platform.replace('=', ' ')}"
    told = f"{found}; it has {' and '.join(wrong)}" if wrong else found
    fix = 'give it runtimeArgs ["--oci-seccomp", "--network=none"] in daemon.json'
    return Check("runsc", not wrong, told, fix, required=wanted == "runsc")


def _is_podman(version: Facts) -> bool:
    return any("Podman" in str(each.get("Name")) for each in version.get("Components") or ())


def check_runc(version: Facts) -> Check:
    """The runtime is not one that containers are known to have got out of."""
    found = _runc_of(version)
    if found is None:
        return Check("runc version", True, "no runc is told", required=False)
    bugs = known_bugs(found)
    told = f"{found}: {', '.join(bugs)}, by upstream's number" if bugs else found
    fix = (
        "upgrade runc to 1.2.8, 1.3.3, 1.4 or newer; distributions mend older ones under the same number,"
        " see in its security tracker whether yours has, or take runsc"
    )
    return Check("runc version", not bugs, told, fix, required=False)


def _runc_of(version: Facts) -> str | None:
    for part in version.get("Components") or ():
        name, words = str(part.get("Name")), str(part.get("Version"))
        podman = _PODMAN_RUNTIME.fullmatch(name)
        if name == "runc" or (podman is not None and podman[1] == "runc"):
            return words.partition("\n")[0].removeprefix("runc version ")
    return None


def check_seccomp(info: Facts) -> Check:
    """The engine loads filters of system calls."""
    options = [str(each) for each in info.get("SecurityOptions") or ()]
    fix = "use a kernel and an engine built with seccomp"
    return Check(
        "seccomp", any("seccomp" in each for each in options), ", ".join(options) or "none", fix
    )


def check_cgroup_mode(info: Facts) -> Check:
    """The engine makes cgroups: one without root and without systemd makes none, and holds nobody."""
    driver = str(info.get("CgroupDriver") or "unknown")
    found = f"v{info.get('CgroupVersion') or '1'} by {driver}"
    fix = "run the engine as root, or under systemd with cgroups v2 and delegated controllers"
    return Check("cgroup mode", driver != "none", found, fix)


def check_limits(info: Facts) -> Check:
    """The kernel holds containers to their limits."""
    wanted = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "cpus"}
    missing = [word for name, word in wanted.items() if not info.get(name, True)]
    found = f"missing: {', '.join(missing)}" if missing else ", ".join(wanted.values())
    fix = "boot a kernel with these cgroup controllers, or delegate them to the engine's user"
    return Check("cgroup limits", not missing, found, fix)


def check_storage(info: Facts) -> Check:
    """Containers share what they have of an image instead of copying it."""
    driver = str(info.get("Driver") or info.get("StorageDriver") or "unknown")
    fix = "put the engine's data on a file system that overlays can lie on; with vfs every container is a whole copy"
    return Check("storage driver", driver != "vfs", driver, fix, required=False)


def check_workspaces(is_local: bool, runtime: str | None, missing: Sequence[str]) -> Check:
    """Workspaces are held to their sizes: those in memory always, those that are kept where images can be mounted."""
    in_memory = "in memory: tmpfs of that size; kept:"
    if is_local and runtime != "runsc" and not missing:
        return Check(
            "workspace sizes", True, f"{in_memory} an ext4 image on a loop device", required=False
        )
    lacks = ", ".join(missing) if is_local else "an engine on this machine"
    lacks = "runtime runc or crun" if is_local and runtime == "runsc" else lacks
    fix = "start Atoll as root with e2fsprogs and loop devices, beside the engine, or name volumes of its own"
    return Check(
        "workspace sizes", False, f"{in_memory} refused, for lack of {lacks}", fix, required=False
    )


def check_root_quota(info: Facts) -> Check:
    """Roots that can be written are on the engine's disk, which some storage holds to a size."""
    is_held, found = root_quota(info)
    fix = f"{ROOT_QUOTA_FIX}, or set allow_writable_root to false"
    return Check("root quota", is_held, found, fix, required=False)


def check_own_ids(engine: str, info: Facts, files: Sequence[Path] = SUBORDINATE_IDS) -> Check:
    """Containers can have ids on the host that no other one has."""
    name, options = "ids of their own", [str(each) for each in info.get("SecurityOptions") or ()]
    if any(each in ("rootless=true", "name=rootless") for each in options):
        fix = "start the engine as root, or set own_ids to false"
        return Check(name, False, "without root all have the ids of one user", fix)
    if engine == "docker":
        ids = "the daemon's one range for all (userns-remap)" if is_mapped(info) else "the host's"
        return Check(name, True, f"a user each, of {ids}", required=False)
    count = min(_listed(file) for file in files) // IDS_OF_EACH
    fix = "list ids for `containers`, as in containers:2147483648:1073741824, in /etc/subuid and /etc/subgid"
    found = f"a range each, for {count} containers at once, if these files are the engine's"
    return Check(name, count > 0, found, fix, required=False)


def _listed(file: Path) -> int:
    """Return how many ids a file of subordinate ids has for containers of root's."""
    try:
        lines = [line.split(":") for line in file.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(line[2]) for line in lines if len(line) == 3 and line[0] == "containers")


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(each) for each in match[0].split(".")) if match else ()
