"""The tree that sandboxes see: a plan of entries from which the jail builds its root."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from atoll.engines.namespaces.wire import (
    MAX_TARGET,
    MAX_TEXT,
    PlanEntry,
    PlanFlag,
    PlanOp,
)
from atoll.errors import InvalidRequest, Unsupported
from atoll.model.sandbox import HOSTS, NETWORK_FILES
from atoll.model.template import BASE_TEMPLATE, PYTHON_TEMPLATE, TemplateTree

# Whoever may connect to one of these is root on the host; a read-only mount does not keep from connecting.
SERVICE_SOCKETS = (
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/systemd/private",
    "/run/systemd/notify",
    "/run/systemd/journal/socket",
    "/run/dbus/system_bus_socket",
    "/run/snapd.socket",
    "/run/lxd.socket",
    "/var/lib/lxd/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
    "/run/libvirt/libvirt-sock",
    "/run/udev/control",
)
PYTHON = "/opt/python"
HOME = "/home/sandbox"
PACKAGES = "/opt/template"
PROGRAMS = "/opt/atoll/bin"

_PASSWD = """root:x:0:0:root:/root:/bin/sh
sandbox:x:65532:65532:sandbox:/home/sandbox:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUP = """root:x:0:
tty:x:5:
sandbox:x:65532:
nogroup:x:65534:
"""
# The interpreter's own script knows it by the path that it has outside, and what is installed there stays outside.
_PIP = """#!/bin/sh
python3 -c 'import pip' 2> /dev/null && exec python3 -m pip "$@"
wheel=$(python3 -c 'import ensurepip, glob, os
print(*glob.glob(os.path.dirname(ensurepip.__file__) + "/_bundled/pip-*.whl"))')
PYTHONPATH="$wheel${PYTHONPATH:+:$PYTHONPATH}" exec python3 -m pip "$@"
"""
_NSSWITCH = """passwd: files
group: files
hosts: files dns
services: files
protocols: files
"""
# Of /etc only what ordinary programs need to start; keys, accounts and host names stay outside.
_ETC_BINDS = (
    "alternatives",
    "fonts",
    "ssl/certs",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "R",
    "perl",
)
_ETC_COPIES = ("ld.so.cache", "localtime", "services", "protocols", "mime.types", "ssl/openssl.cnf")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_EMPTY = (
    "/proc", "/tmp", "/workspace", "/home", HOME, "/mnt", "/opt", "/run", "/root", "/var", "/var/lib",
    "/dev/pts", "/dev/shm",
)  # fmt: skip
_LINKS = {
    "/etc/mtab": "/proc/self/mounts",
    "/etc/os-release": "../usr/lib/os-release",
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/ptmx": "pts/ptmx",
    "/var/tmp": "/tmp",
}


@dataclass(frozen=True, slots=True)
class Template:
    """The recipe for new sandboxes: a tree and an environment."""

    name: str
    plan: tuple[PlanEntry, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    interpreter: bool = False  # its zygote is an interpreter that forks kernels

    @property
    def digest(self) -> str:
        """Tells whether a jail that was made earlier would be made the same way now."""
        digest = hashlib.sha256(self.name.encode())
        for each in self.plan:
            digest.update(bytes(each))
            if each.op == PlanOp.COPY:
                with suppress(OSError):
                    facts = os.stat(each.source)
                    digest.update(f"{facts.st_ino} {facts.st_mtime_ns}".encode())
        return digest.hexdigest()[:32]


def base_template(init: Path) -> Template:
    """Return the template that holds this machine's programs; `init` is the program that is pid 1."""
    return Template(BASE_TEMPLATE, tuple(_base_plan(init)), _base_env())


def python_template(binaries: Path, tree: TemplateTree) -> Template:
    """Return the base with the packages of a tree, and a zygote that forks Python kernels."""
    base = base_template(binaries / "init")
    env = {**base.env, "PYTHONPATH": PACKAGES}
    plan = (*base.plan, *_zygote_entries(binaries / "spawn.so", tree, env))
    return Template(PYTHON_TEMPLATE, plan, env, interpreter=True)


def _zygote_entries(
    library: Path, tree: TemplateTree, env: Mapping[str, str]
) -> Iterator[PlanEntry]:
    prefix = interpreter_prefix()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = f"/usr/bin/{version}" if prefix is None else f"{PYTHON}/bin/{version}"
    yield entry(PlanOp.OVERLAY, PACKAGES, str(tree.path))
    yield entry(PlanOp.COPY, "/.atoll/spawn.so", str(library), PlanFlag.EXECUTABLE)
    yield entry(PlanOp.SYMLINK, "/.atoll/python", program)
    yield entry(PlanOp.TEXT, "/.atoll/zygote.py", _ZYGOTE)
    yield entry(PlanOp.TEXT, "/.atoll/environment", "".join(f"{k}={v}\n" for k, v in env.items()))


_ZYGOTE = f"""import sys
sys.path.append({PACKAGES!r})
from atoll_guest.zygote import main
main()
"""


def _base_plan(init: Path) -> Iterator[PlanEntry]:
    for path in (
        "/dev",
        "/etc",
        "/etc/ssl",
        "/etc/pki",
        "/etc/pki/tls",
        "/etc/pki/ca-trust",
        "/.atoll",
    ):
        yield entry(PlanOp.DIRECTORY, path)
    yield entry(PlanOp.DIRECTORY, "/.atoll/empty")
    yield entry(PlanOp.COPY, "/.atoll/init", str(init), PlanFlag.EXECUTABLE)
    for path in _EMPTY:
        yield entry(PlanOp.DIRECTORY, path)
    yield from _system_entries()
    yield from _etc_entries()
    for name in _DEVICES:
        yield entry(PlanOp.DEVICE, f"/dev/{name}", f"/dev/{name}")
    for path, target in _LINKS.items():
        yield entry(PlanOp.SYMLINK, path, target)
    yield from _python_entries()


def _system_entries() -> Iterator[PlanEntry]:
    yield entry(PlanOp.BIND, "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            yield entry(PlanOp.SYMLINK, str(path), os.readlink(path))
        elif path.is_dir():
            yield entry(PlanOp.BIND, str(path), str(path))


def _etc_entries() -> Iterator[PlanEntry]:
    for name, text in (
        ("passwd", _PASSWD),
        ("group", _GROUP),
        ("nsswitch.conf", _NSSWITCH),
    ):
        yield entry(PlanOp.TEXT, f"/etc/{name}", text)
    # A sandbox with names of its own has another directory mounted over this one.
    yield entry(PlanOp.DIRECTORY, NETWORK_FILES)
    yield entry(PlanOp.TEXT, f"{NETWORK_FILES}/hosts", HOSTS)
    yield entry(PlanOp.SYMLINK, "/etc/hosts", f"{NETWORK_FILES}/hosts")
    yield entry(PlanOp.TEXT, "/etc/resolv.conf", "# no network\n")
    # Links are resolved here, on the host: inside the half-built jail they would lead elsewhere.
    for name in _ETC_COPIES:
        yield entry(
            PlanOp.COPY, f"/etc/{name}", os.path.realpath(f"/etc/{name}"), PlanFlag.OPTIONAL
        )
    java = sorted(path.name for path in Path("/etc").glob("java-*-openjdk"))
    for name in (*_ETC_BINDS, *java):
        if Path("/etc", name).is_dir():
            yield entry(PlanOp.BIND, f"/etc/{name}", os.path.realpath(f"/etc/{name}"))


def _python_entries() -> Iterator[PlanEntry]:
    """The running interpreter at a neutral path, unless it is the system's own."""
    prefix = interpreter_prefix()
    if prefix is None:
        return
    for path in (PYTHON, os.path.dirname(PROGRAMS), PROGRAMS):
        yield entry(PlanOp.DIRECTORY, path)
    for name in ("pip", "pip3"):
        yield entry(PlanOp.TEXT, f"{PROGRAMS}/{name}", _PIP, PlanFlag.EXECUTABLE)
    for name in ("bin", "lib", "include"):
        if (prefix / name).is_dir():
            yield entry(PlanOp.OVERLAY, f"{PYTHON}/{name}", str(prefix / name))
    # What happens to be installed beside the host's interpreter is not the sandbox's business.
    for packages in sorted(prefix.glob("lib/python3*/site-packages")):
        yield entry(PlanOp.MASK, f"{PYTHON}/{packages.relative_to(prefix)}")


def interpreter_prefix() -> Path | None:
    """Return where the running interpreter lives, or None if that is below /usr and so inside anyway."""
    prefix = Path(os.path.realpath(sys.base_prefix))
    return None if prefix.is_relative_to("/usr") else prefix


def _needs_library_path(prefix: Path) -> bool:
    """Whether the interpreter looks for its library at the absolute path it was built for.

    Builds that are made to be moved find it by themselves, and keep other libraries beside it that must not
    get in the way of the system's programs.
    """
    libraries = {path.name for path in prefix.glob("lib/*.so*")}
    return bool(libraries) and all(name.startswith("libpython") for name in libraries)


def _base_env() -> dict[str, str]:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    prefix = interpreter_prefix()
    libraries = (
        {"LD_LIBRARY_PATH": f"{PYTHON}/lib"} if prefix and _needs_library_path(prefix) else {}
    )
    return {
        **libraries,
        "PATH": path if prefix is None else f"{PROGRAMS}:{PYTHON}/bin:{path}",
        "HOME": HOME,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def check_source(path: str) -> None:
    """Raise `InvalidRequest` if a service that gives root away has its socket below `path`."""
    for each in SERVICE_SOCKETS:
        if Path(each).is_relative_to(os.path.realpath(path)):
            raise InvalidRequest(
                f"host directory {path!r} may not be mounted: {each} lies there, and who reaches that rules the host",
                path=path,
            )


def entry(op: PlanOp, target: str, source: str = "", flags: int = 0) -> PlanEntry:
    """Return one entry of a plan."""
    encoded_target, encoded_source = os.fsencode(target), os.fsencode(source)
    if len(encoded_target) >= MAX_TARGET or len(encoded_source) >= MAX_TEXT:
        raise Unsupported(f"path {source or target!r} is too long for a template")
    return PlanEntry(op=op, flags=flags, target=encoded_target, source=encoded_source)
