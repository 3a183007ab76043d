"""The root that sandboxes see, whoever builds it: this machine's programs, what little of /etc they need, and what templates add.

Everything here is a plan: pure, and the same for every engine that has no image to take its root from.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from atoll.errors import InvalidRequest, Unsupported
from atoll.model.accounts import GROUP, PASSWD
from atoll.model.guest import GUEST, GUEST_SOURCE, SYSTEM_PATH, guest_files
from atoll.model.sandbox import HOSTS, NETWORK_FILES, SandboxSpec
from atoll.model.template import BASE_TEMPLATE, NODE_TEMPLATE, R_TEMPLATE, TemplateTree

PYTHON = "/opt/python"
HOME = "/home/sandbox"
DENO = "/opt/deno"
JULIA = "/opt/julia"
PACKAGES = "/opt/template"
BUILT_PACKAGES = "/opt/packages"
PROGRAMS = "/opt/atoll/bin"
NODE_PROGRAMS = "/opt/atoll/node"
NODE_MODULES = "/node_modules"
EMPTY = "/.atoll/empty"
R_HOMES = (Path("/usr/lib/R"), Path("/usr/lib64/R"))
# Without these, what numpy is built on would start a thread for each processor as soon as it is loaded.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# The interpreter's own script knows it by the path that it has outside, and what is installed there stays outside.
_PIP = """#!/bin/sh
python3 -c 'import pip' 2> /dev/null && exec python3 -m pip "$@"
wheel=$(python3 -c 'import ensurepip, glob, os
print(*glob.glob(os.path.dirname(ensurepip.__file__) + "/_bundled/pip-*.whl"))')
PYTHONPATH="$wheel${PYTHONPATH:+:$PYTHONPATH}" exec python3 -m pip "$@"
"""
# npm takes the nearest directory that has packages for the project: for every empty one that would be the root.
_NPM = f"""#!/bin/sh
IFS=:
for folder in $PATH; do
    [ "$folder" != {NODE_PROGRAMS} ] && [ -x "$folder/npm" ] && npm=$folder/npm && break
done
unset IFS
[ -n "$npm" ] || {{ echo 'npm: not found' >&2; exit 127; }}
case " $* " in *" -g "* | *" --global "* | *" --location"*) exec "$npm" "$@" ;; esac
project=$PWD
while [ "$project" != / ] && [ ! -f "$project/package.json" ] && [ ! -d "$project/node_modules" ]; do
    project=$(dirname "$project")
done
[ "$project" != / ] || set -- --prefix "$PWD" "$@"
exec "$npm" "$@"
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
_FIRST = (
    "/dev", "/etc", "/etc/ssl", "/etc/pki", "/etc/pki/tls", "/etc/pki/ca-trust", "/.atoll", EMPTY,
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_EMPTY = (
    "/proc", "/tmp", "/workspace", "/home", HOME, "/mnt", "/opt", "/run", "/root", "/var", "/var/lib",
    "/dev/pts", "/dev/shm",
)  # fmt: skip
# An image has its own /etc, /usr and the like; these are the sandbox's, whatever the image has there.
_OWN_OUTER = frozenset(
    {"dev", "proc", "sys", "tmp", "run", "mnt", "workspace", ".atoll", "opt", "home"}
)
_OWN_OPT = frozenset(
    path.removeprefix("/opt/").partition("/")[0] for path in (GUEST, PACKAGES, BUILT_PACKAGES)
)
_OWN_HOME = frozenset({HOME.rpartition("/")[2]})
_LINKS = {
    "/etc/mtab": "/proc/self/mounts",
    "/etc/os-release": "../usr/lib/os-release",
    "/var/tmp": "/tmp",
}
_DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/ptmx": "pts/ptmx",
}


class Op(StrEnum):
    """How one entry of a root is made."""

    DIRECTORY = "directory"
    BIND = "bind"  # read-only, nosuid, nodev
    DEVICE = "device"
    SYMLINK = "symlink"
    TEXT = "text"
    COPY = "copy"
    OVERLAY = "overlay"  # read-only, hides the path it comes from
    MASK = "mask"  # an empty directory over what is there


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a root: where it is, and where it comes from or what it holds."""

    op: Op
    target: str
    source: str = ""
    is_executable: bool = False
    is_optional: bool = False


def check_template(spec: SandboxSpec, trees: Mapping[str, Callable[[], TemplateTree]]) -> None:
    """Raise `InvalidRequest` for a template that there is none of, `Unsupported` for a kernel where there can be none."""
    if spec.template != BASE_TEMPLATE and not _has_kernels(spec.template, trees):
        known = ", ".join((BASE_TEMPLATE, *trees, NODE_TEMPLATE, R_TEMPLATE))
        raise InvalidRequest(
            f"there is no template {str(spec.template)[:160]!r}; there is: {known}",
            template=str(spec.template)[:160],
        )
    if spec.kernel and not _has_kernels(spec.template, trees):
        raise Unsupported(f"template {spec.template!r} has no interpreter to open kernels with")


def _has_kernels(template: str, trees: Mapping[str, Callable[[], TemplateTree]]) -> bool:
    # Asked for by itself: one that is pinned to a digest is in no list.
    return isinstance(template, str) and (
        template in (NODE_TEMPLATE, R_TEMPLATE) or template in trees
    )


def base_entries() -> Iterator[Entry]:
    """Yield what every root has, parents first."""
    for path in _FIRST:
        yield Entry(Op.DIRECTORY, path)
    for path in _EMPTY:
        yield Entry(Op.DIRECTORY, path)
    yield from _system_entries()
    yield from _etc_entries()
    yield from _device_entries()
    for path, target in _LINKS.items():
        yield Entry(Op.SYMLINK, path, target)
    yield from _guest_entries()
    yield from _python_entries()


def python_entries(tree: TemplateTree) -> Iterator[Entry]:
    """Yield what a template with packages of Python's adds."""
    yield Entry(Op.OVERLAY, PACKAGES, str(tree.path))
    if tree.packages is not None:
        yield Entry(Op.OVERLAY, BUILT_PACKAGES, str(tree.packages))


def python_env(tree: TemplateTree) -> dict[str, str]:
    """Return the variables of such a template."""
    env = {**base_env(), "PYTHONPATH": PACKAGES}
    if tree.packages is None:
        return env
    return {
        **env,
        "PATH": f"{BUILT_PACKAGES}/bin:{env['PATH']}",
        "PYTHONPATH": f"{PACKAGES}:{BUILT_PACKAGES}",
        **ONE_THREAD,
    }


def node_entries(tree: TemplateTree) -> Iterator[Entry]:
    """Yield what a template with packages of Node's adds; they are found from every directory that has none nearer."""
    yield Entry(Op.OVERLAY, BUILT_PACKAGES, str(tree.packages))
    yield Entry(Op.SYMLINK, NODE_MODULES, f"{BUILT_PACKAGES}/node_modules")
    yield Entry(Op.DIRECTORY, NODE_PROGRAMS)
    yield Entry(Op.TEXT, f"{NODE_PROGRAMS}/npm", _NPM, is_executable=True)


def node_env() -> dict[str, str]:
    """Return the variables of such a template."""
    env = base_env()
    return {**env, "PATH": f"{NODE_PROGRAMS}:{BUILT_PACKAGES}/node_modules/.bin:{env['PATH']}"}


def image_entries(tree: TemplateTree) -> Iterator[Entry]:
    """Yield the whole root of a template that was unpacked from an image, parents first."""
    assert tree.root is not None
    for path in (
        "/dev",
        "/.atoll",
        EMPTY,
        *(each for each in _EMPTY if not each.startswith("/var")),
    ):
        yield Entry(Op.DIRECTORY, path)
    yield from _outer_entries(tree.root, "", _OWN_OUTER)
    yield from _outer_entries(tree.root / "opt", "/opt", _OWN_OPT)
    yield from _outer_entries(tree.root / "home", "/home", _OWN_HOME)
    yield from _device_entries()
    yield from _guest_entries()
    yield Entry(Op.OVERLAY, PACKAGES, str(tree.path))


def image_env(tree: TemplateTree) -> dict[str, str]:
    """Return the variables of such a template: the image's, but for those that say whose the sandbox is."""
    assert tree.root is not None
    # Never followed: it is only seen whether there is one.
    has_bash = any(os.path.lexists(tree.root / each / "bash") for each in ("bin", "usr/bin"))
    return {
        "PATH": SYSTEM_PATH,
        "LANG": "C.UTF-8",
        **tree.env,
        "HOME": HOME,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "SHELL": "/bin/bash" if has_bash else "/bin/sh",
        "TMPDIR": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
        "ATOLL_PACKAGES": PACKAGES,
    }


def _outer_entries(folder: Path, target: str, own: frozenset[str]) -> Iterator[Entry]:
    """What lies directly in a directory of an image, each by itself; the directory is the sandbox's own."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for found in sorted(os.scandir(folder), key=lambda each: each.name):
        path = f"{target}/{found.name}"
        if found.name in own:
            continue
        if found.is_symlink():
            yield Entry(Op.SYMLINK, path, os.readlink(found.path))
        elif found.is_dir(follow_symlinks=False):
            yield Entry(Op.OVERLAY, path, found.path)
        else:
            yield Entry(Op.BIND, path, found.path)


def deno_entries(tree: TemplateTree) -> Iterator[Entry]:
    """Yield what a template with Deno adds."""
    yield Entry(Op.OVERLAY, DENO, str(tree.path))


def deno_env() -> dict[str, str]:
    """Return the variables of such a template."""
    env = base_env()
    return {**env, "PATH": f"{DENO}/bin:{env['PATH']}", "DENO_NO_UPDATE_CHECK": "1"}


def julia_entries(tree: TemplateTree) -> Iterator[Entry]:
    """Yield what a template with Julia adds."""
    yield Entry(Op.OVERLAY, JULIA, str(tree.path))


def julia_env() -> dict[str, str]:
    """Return the variables of such a template; packages go below the sandbox's home by themselves."""
    env = base_env()
    return {**env, "PATH": f"{JULIA}/bin:{env['PATH']}"}


def check_node(path: str = SYSTEM_PATH) -> None:
    """Raise `Unsupported` where there is no Node."""
    if shutil.which("node", path=path) is None:
        raise Unsupported(
            "there is no Node on this machine; install version 20 or newer, for example with: apt-get install nodejs",
            template=NODE_TEMPLATE,
        )


def find_r_home(homes: Sequence[Path] = R_HOMES) -> Path:
    """Return where R lives; raise `Unsupported` where there is none."""
    home = next((path for path in homes if (path / "bin" / "exec" / "R").is_file()), None)
    if home is None:
        raise Unsupported(
            "there is no R on this machine; install it, for example with: apt-get install r-base-core",
            template=R_TEMPLATE,
        )
    return home


def _system_entries() -> Iterator[Entry]:
    yield Entry(Op.BIND, "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            yield Entry(Op.SYMLINK, str(path), os.readlink(path))
        elif path.is_dir():
            yield Entry(Op.BIND, str(path), str(path))


def _device_entries() -> Iterator[Entry]:
    for name in _DEVICES:
        yield Entry(Op.DEVICE, f"/dev/{name}", f"/dev/{name}")
    for path, target in _DEVICE_LINKS.items():
        yield Entry(Op.SYMLINK, path, target)


def _etc_entries() -> Iterator[Entry]:
    for name, text in (
        ("passwd", PASSWD),
        ("group", GROUP),
        ("nsswitch.conf", _NSSWITCH),
    ):
        yield Entry(Op.TEXT, f"/etc/{name}", text)
    # A sandbox with names of its own has another directory mounted over this one.
    yield Entry(Op.DIRECTORY, NETWORK_FILES)
    yield Entry(Op.TEXT, f"{NETWORK_FILES}/hosts", HOSTS)
    yield Entry(Op.SYMLINK, "/etc/hosts", f"{NETWORK_FILES}/hosts")
    yield Entry(Op.TEXT, "/etc/resolv.conf", "# no network\n")
    # Links are resolved here, on the host: inside the half-built jail they would lead elsewhere.
    for name in _ETC_COPIES:
        source = os.path.realpath(f"/etc/{name}")
        yield Entry(Op.COPY, f"/etc/{name}", source, is_optional=True)
    java = sorted(path.name for path in Path("/etc").glob("java-*-openjdk"))
    for name in (*_ETC_BINDS, *java):
        if Path("/etc", name).is_dir():
            yield Entry(Op.BIND, f"/etc/{name}", os.path.realpath(f"/etc/{name}"))


def _guest_entries() -> Iterator[Entry]:
    """The guest's own code, for programs that become kernels."""
    files = guest_files()
    package = Path(GUEST, GUEST_SOURCE.name)
    folders = sorted({package / path.parent for path in files})
    for path in (package.parents[1], package.parent, *folders):
        yield Entry(Op.DIRECTORY, str(path))
    for path in files:
        yield Entry(Op.COPY, str(package / path), str(GUEST_SOURCE / path))


def _python_entries() -> Iterator[Entry]:
    """The running interpreter at a neutral path, unless it is the system's own."""
    prefix = interpreter_prefix()
    if prefix is None:
        return
    for path in (PYTHON, PROGRAMS):
        yield Entry(Op.DIRECTORY, path)
    for name in ("pip", "pip3"):
        yield Entry(Op.TEXT, f"{PROGRAMS}/{name}", _PIP, is_executable=True)
    for name in ("bin", "lib", "include"):
        if (prefix / name).is_dir():
            yield Entry(Op.OVERLAY, f"{PYTHON}/{name}", str(prefix / name))
    # What happens to be installed beside the host's interpreter is not the sandbox's business.
    for packages in sorted(prefix.glob("lib/python3*/site-packages")):
        yield Entry(Op.MASK, f"{PYTHON}/{packages.relative_to(prefix)}")


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


def base_env() -> dict[str, str]:
    prefix = interpreter_prefix()
    libraries = (
        {"LD_LIBRARY_PATH": f"{PYTHON}/lib"} if prefix and _needs_library_path(prefix) else {}
    )
    return {
        **libraries,
        "PATH": SYSTEM_PATH if prefix is None else f"{PROGRAMS}:{PYTHON}/bin:{SYSTEM_PATH}",
        "HOME": HOME,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
