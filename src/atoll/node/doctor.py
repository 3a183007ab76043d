"""What this machine gives for sandboxes and how hard a target it is: one small check per fact.

A check that fails with `required` names something that the default engine cannot do without. All others
are advice: sandboxes work, and hold, without them; they are what is left if one of our walls breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import PurePosixPath

from atoll.engines.contract import Check
from atoll.model.sizes import GIB, MIB, format_size
from atoll.node.cgroup_view import CONTROLLERS, CgroupView, view_cgroups
from atoll.node.host import Host
from atoll.node.kernel_bugs import known_bugs, parse_version
from atoll.node.sysctls import SYSCTLS, check_sysctl

OLDEST_TRIED_KERNEL = (5, 13)
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
SECCOMP_ACTIONS = frozenset({"allow", "errno", "kill_process"})

# Places below /proc that the kernel keeps empty; mounts there hide nothing.
_HARMLESS_PROC_MOUNTS = frozenset({"/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd"})
_ENOUGH_MEMORY = 512 * MIB
_ENOUGH_DISK = GIB
_ENOUGH_FILES = 4096


def examine(host: Host) -> Sequence[Check]:
    """Return every check of this machine, what sandboxes need first."""
    return [check(host) for check in HOST_CHECKS]


def check_kernel_version(host: Host) -> Check:
    """Older kernels may work but nobody has tried them."""
    version = parse_version(host.release)
    ok = version is not None and version[:2] >= OLDEST_TRIED_KERNEL
    oldest = ".".join(map(str, OLDEST_TRIED_KERNEL))
    return _advice(
        "kernel", ok, host.release, f"install Linux {oldest} or newer; {oldest} brought Landlock"
    )


def check_known_bugs(host: Host) -> Check:
    """The system-call filter keeps most kernel bugs out of reach; better not to have them."""
    bugs = known_bugs(
        host.release, host.text("/proc/version") or "", host.text("/proc/version_signature") or ""
    )
    if not bugs:
        return _advice("kernel bugs", True, "none of the listed ones by version")
    listed = ", ".join(bugs)
    found = f"{listed} by upstream version; your distribution may have patched it"
    return _advice(
        "kernel bugs", False, found, "install your distribution's newest kernel and reboot"
    )


def check_user_namespaces(host: Host) -> Check:
    """Everything else is built inside a user namespace."""
    if not host.exists("/proc/self/ns/user"):
        return _need(
            "user namespaces", False, "not in this kernel", "boot a kernel with CONFIG_USER_NS=y"
        )
    most = host.number("/proc/sys/user/max_user_namespaces")
    found = "no limit is shown" if most is None else f"at most {most}"
    return _need("user namespaces", most != 0, found, "sysctl -w user.max_user_namespaces=15000")


def check_userns_clone(host: Host) -> Check:
    """Debian's own switch; it does not bind root."""
    name = "kernel.unprivileged_userns_clone"
    value = host.number("/proc/sys/kernel/unprivileged_userns_clone")
    if value is None:
        return _need(name, True, "not in this kernel")
    return _need(name, value == 1 or host.euid == 0, str(value), f"sysctl -w {name}=1")


def check_apparmor_userns(host: Host) -> Check:
    """Ubuntu 23.10 and newer take all rights in a user namespace from ordinary users' programs."""
    name = "kernel.apparmor_restrict_unprivileged_userns"
    value = host.number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if value is None:
        return _need(name, True, "not in this kernel")
    fix = f"add an AppArmor profile with 'userns,' for Atoll's Python, or sysctl -w {name}=0"
    return _need(name, value == 0 or host.euid == 0, str(value), fix)


def check_namespaces(host: Host) -> Check:
    """A sandbox has its own of each kind."""
    missing = [name for name in NAMESPACES if not host.exists(f"/proc/self/ns/{name}")]
    found = f"missing: {', '.join(missing)}" if missing else ", ".join(NAMESPACES)
    return _need(
        "namespaces", not missing, found, "boot a kernel with CONFIG_NAMESPACES=y and all its kinds"
    )


def check_seccomp(host: Host) -> Check:
    """The system-call filter."""
    actions = (host.text("/proc/sys/kernel/seccomp/actions_avail") or "").split()
    found = " ".join(actions) or "no filter in this kernel"
    ok = SECCOMP_ACTIONS.issubset(actions)
    return _need(
        "seccomp", ok, found, "boot a kernel with CONFIG_SECCOMP_FILTER=y (Linux 4.14 or newer)"
    )


def check_landlock(host: Host) -> Check:
    """A second wall round files, independent of mounts."""
    ok = host.landlock_abi > 0
    found = f"ABI {host.landlock_abi}" if ok else "not available"
    return _advice(
        "landlock", ok, found, "boot with lsm=landlock,… and CONFIG_SECURITY_LANDLOCK=y (5.13)"
    )


def check_cgroup_layout(host: Host) -> Check:
    """Control groups enforce memory, cpu and process limits; without them rlimits and a watchdog do."""
    layout = view_cgroups(host).layout
    fix = "mount -t cgroup2 none /sys/fs/cgroup (as root), or boot with systemd"
    return _advice("cgroups", layout != "none", layout, fix)


def check_controller(host: Host, controller: str) -> Check:
    """Whether the kernel itself can hold sandboxes to this kind of limit."""
    name = f"cgroup {controller}"
    view = view_cgroups(host)
    directory = view.directory(controller)
    if directory is None:
        return _advice(name, False, "not available", _controller_fix(host, view, controller))
    if host.writable(directory):
        return _advice(name, True, directory)
    return _advice(name, False, f"{directory} is not writable", _delegation_fix(host))


def _controller_fix(host: Host, view: CgroupView, controller: str) -> str:
    if view.layout == "none":
        return "see 'cgroups' above"
    if view.v2 and not view.v1 and host.euid != 0:
        return _delegation_fix(host)
    return f"boot with cgroup_enable={controller}, or mount -t cgroup -o {controller} (v1, as root)"


def _delegation_fix(host: Host) -> str:
    if host.euid == 0:
        return "mount -o remount,rw the hierarchy, or give the container a writable /sys/fs/cgroup"
    return "start with systemd-run --user --scope -p Delegate=yes atoll …, or as root"


def check_swap_accounting(host: Host) -> Check:
    """Without it a sandbox at its memory limit goes on in the host's swap."""
    if not _swaps(host):
        return _advice("swap accounting", True, "no swap to account for")
    view = view_cgroups(host)
    directory = view.directory("memory")
    file = "memory.memsw.limit_in_bytes" if "memory" in view.v1 else "memory.swap.max"
    # The top group of v2 has no limit files; its children have.
    ok = directory is not None and (
        host.exists(f"{directory}/{file}") or directory == "/sys/fs/cgroup"
    )
    return _advice(
        "swap accounting", ok, "on" if ok else "off", "boot with swapaccount=1, or swapoff -a"
    )


def _accounts_for_swap(host: Host, view: CgroupView) -> bool:
    directory = view.directory("memory")
    if directory is None:
        return False
    if "memory" in view.v1:
        return host.exists(f"{directory}/memory.memsw.limit_in_bytes")
    # The top group of v2 has no limits of its own; there the kernel's default, on, is all there is.
    at_top = not host.exists(f"{directory}/memory.max")
    return at_top or host.exists(f"{directory}/memory.swap.max")


def check_swap(host: Host) -> Check:
    """What a sandbox keeps in memory can end up on the disk."""
    disks = [name for name in _swaps(host) if not name.startswith("/dev/zram")]
    found = (
        f"on {', '.join(disks)}: secrets in memory can reach the disk" if disks else "none on disk"
    )
    return _advice("swap", not disks, found, "swapoff -a, or use encrypted swap or zram")


def _swaps(host: Host) -> Sequence[str]:
    return [line.split()[0] for line in host.lines("/proc/swaps")[1:] if line.strip()]


def check_proc_visible(host: Host) -> Check:
    """The kernel refuses a sandbox its own /proc where ours is partly covered, as in a container."""
    covered = [
        target
        for target in _mount_targets(host)
        if target.startswith("/proc/") and target not in _HARMLESS_PROC_MOUNTS
    ]
    found = f"covered: {', '.join(covered[:5])}" if covered else "fully visible"
    fix = "start the container with --security-opt systempaths=unconfined, or use the host"
    return _need("/proc", not covered, found, fix)


def _mount_targets(host: Host) -> Sequence[str]:
    return [line.split()[4] for line in host.lines("/proc/self/mountinfo")]


def check_file_system(host: Host, kind: str, *, required: bool) -> Check:
    """Whether the kernel knows a kind of file system now; a module may have to be loaded."""
    known = [line.split()[-1] for line in host.lines("/proc/filesystems") if line.strip()]
    ok = kind in known
    fix = f"modprobe {kind}, or boot a kernel that has it"
    return Check(kind, ok, "available" if ok else "not available", "" if ok else fix, required)


def check_core_pattern(host: Host) -> Check:
    """A pipe makes the host's root run a program on data from inside."""
    pattern = host.text("/proc/sys/kernel/core_pattern") or "core"
    ok = not pattern.startswith("|")
    found = pattern if ok else f"crashes are handed to {pattern[1:].split()[0]}, which runs as root"
    return _advice("kernel.core_pattern", ok, found, "sysctl -w kernel.core_pattern=core")


def check_cpu_vulnerabilities(host: Host) -> Check:
    """Walls inside one machine cannot stop what the processor itself leaks."""
    directory = "/sys/devices/system/cpu/vulnerabilities"
    names = [
        name
        for name in host.names(directory)
        if (host.text(f"{directory}/{name}") or "").startswith("Vuln")
    ]
    found = f"vulnerable: {', '.join(names)}" if names else "no open ones known to the kernel"
    fix = (
        "update microcode and kernel and boot without mitigations=off; else one tenant per machine"
    )
    return _advice("cpu vulnerabilities", not names, found, fix)


def check_smt(host: Host) -> Check:
    """Two sandboxes on one core can watch each other's timing."""
    ok = host.number("/sys/devices/system/cpu/smt/active") != 1
    fix = "boot with nosmt, or echo off > /sys/devices/system/cpu/smt/control"
    return _advice("smt", ok, "off" if ok else "on: sandboxes share cores", fix)


def check_vsyscall(host: Host) -> Check:
    """A page of code at a fixed address helps attackers; only programs from before 2012 need it."""
    rights = [
        line.split()[1] for line in host.lines("/proc/self/maps") if line.endswith("[vsyscall]")
    ]
    ok = not any("r" in right for right in rights)
    found = "off" if not rights else "execute-only" if ok else "readable"
    return _advice("vsyscall", ok, found, "boot with vsyscall=none")


def check_memory(host: Host) -> Check:
    """One sandbox may use 1 GiB by default."""
    for line in host.lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
            fix = f"free memory up to {format_size(_ENOUGH_MEMORY)}, or run with --memory 128m"
            return _advice("memory", free >= _ENOUGH_MEMORY, f"{format_size(free)} available", fix)
    return _advice("memory", False, "/proc/meminfo tells nothing", "mount -t proc proc /proc")


def check_disk(host: Host) -> Check:
    """Templates and saved sandboxes live in the data directory."""
    place = _nearest_existing(host, host.data_dir)
    free = host.free_bytes(place)
    fix = f"free {format_size(_ENOUGH_DISK)} there, or set ATOLL_DATA to a directory with more room"
    return _advice("disk", free >= _ENOUGH_DISK, f"{format_size(free)} free at {place}", fix)


def check_open_files(host: Host) -> Check:
    """Every sandbox takes about ten descriptors of the node."""
    for line in host.lines("/proc/self/limits"):
        if line.startswith("Max open files"):
            most = line.split()[4]
            ok = most == "unlimited" or int(most) >= _ENOUGH_FILES
            fix = "raise nofile in /etc/security/limits.conf, or LimitNOFILE= of the service, to 65536"
            return _advice("open files", ok, f"at most {most}", fix)
    return _advice(
        "open files", False, "/proc/self/limits tells nothing", "mount -t proc proc /proc"
    )


def check_program(host: Host, name: str, package: str) -> Check:
    """The base template shows the host's programs; one that is missing here is missing inside."""
    path = host.program(name)
    fix = f"install it if programs inside need it: apt install {package}"
    return _advice(f"program {name}", path is not None, path or "not found", fix)


def check_data_directory(host: Host) -> Check:
    """Nobody else may write where templates come from."""
    facts = host.stat(host.data_dir)
    if facts is None:
        return _missing_data_directory(host)
    path, name = host.data_dir, "data directory"
    if facts.st_uid != host.euid:
        return _advice(
            name, False, f"{path} belongs to user {facts.st_uid}", f"chown {host.euid} {path}"
        )
    if facts.st_mode & 0o022:
        return _advice(name, False, f"{path} is writable by others", f"chmod go-w {path}")
    return _advice(name, host.writable(path), path, f"chmod u+w {path}, or remount it writable")


def _missing_data_directory(host: Host) -> Check:
    parent = _nearest_existing(host, host.data_dir)
    found = f"{host.data_dir} will be made"
    if host.writable(parent):
        return _advice("data directory", True, found)
    fix = "set ATOLL_DATA to a directory of your own"
    return _advice("data directory", False, f"{parent} is not writable", fix)


def _nearest_existing(host: Host, path: str) -> str:
    return next(
        (
            str(place)
            for place in (PurePosixPath(path), *PurePosixPath(path).parents)
            if host.exists(str(place))
        ),
        "/",
    )


def _need(name: str, ok: bool, found: str, fix: str = "") -> Check:
    return Check(name, ok, found, "" if ok else fix, required=True)


def _advice(name: str, ok: bool, found: str, fix: str = "") -> Check:
    return Check(name, ok, found, "" if ok else fix, required=False)


HOST_CHECKS: Sequence[Callable[[Host], Check]] = (
    check_user_namespaces,
    check_userns_clone,
    check_apparmor_userns,
    check_namespaces,
    check_seccomp,
    check_proc_visible,
    partial(check_file_system, kind="tmpfs", required=True),
    partial(check_file_system, kind="devpts", required=True),
    check_kernel_version,
    check_known_bugs,
    check_landlock,
    partial(check_file_system, kind="overlay", required=False),
    check_cgroup_layout,
    *(partial(check_controller, controller=name) for name in CONTROLLERS),
    check_swap_accounting,
    check_swap,
    check_core_pattern,
    *(partial(check_sysctl, setting=setting) for setting in SYSCTLS),
    check_cpu_vulnerabilities,
    check_smt,
    check_vsyscall,
    check_memory,
    check_disk,
    check_open_files,
    check_data_directory,
    *(
        partial(check_program, name=name, package=package)
        for name, package in (("git", "git"), ("node", "nodejs"), ("gcc", "gcc"), ("rg", "ripgrep"))
    ),
)
