"""The images that tests run containers of: made here from the distribution's packages, kept by digest."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tools.container_daemons import ContainerDaemon
from tools.debian_julia import find_programs
from tools.debian_tree import VARIANT, make_archive, suite
from tools.places import digest_of, made_once, must_run, own_folder, say

# By the name that tests call them; each is made when the first one asks for it.
PACKAGES = {
    "base": ("python3", "python-is-python3", "ca-certificates", "procps"),
    "node": ("nodejs",),
    "r": ("r-base-core",),
    # All that a server's image, its database and a machine with systemd are made of.
    "deploy": (
        "ca-certificates",
        "dbus",
        "git",
        "postgresql",
        "procps",
        "python3",
        "python3-venv",
        "ripgrep",
        "systemd-sysv",
        "tini",
    ),
    "languages": ("python3", "python-is-python3", "procps", "r-base-core"),
}
# What the distribution has too old, or not at all: copies of this machine's own, which need no more than the C++ library.
PROGRAMS = {"languages": ("node", "deno")}
# The image in which Julia lies as it does here.
WITH_JULIA = "languages"
JULIA_PLACE = "opt/julia"
# It has no shell, no Python, no C library: nothing but one static program.
BARE = "bare"
BARE_PROGRAM = "/bin/bare"

_SOURCE = Path(__file__).with_name("bare_program.c")


def import_image(daemon: ContainerDaemon, name: str) -> str:
    """Return what a daemon calls the image `base`, `node`, `r`, `languages`, `deploy` or `bare`; made and imported on first use."""
    if name == BARE:
        digest = digest_of(platform.machine(), _SOURCE.read_text())
    else:
        programs = [(_place(path), path.stat().st_size) for path in _programs(name)]
        julia = str(_julia(name))
        digest = digest_of(suite(), platform.machine(), VARIANT, PACKAGES[name], *programs, julia)
    archives = own_folder("atoll-images")
    archive = made_once(archives / f"{name}-{digest}.tar", lambda target: _make(name, target))
    return daemon.import_image(archive, f"atoll-{name}:{digest}")


def _make(name: str, target: Path) -> None:
    say(f"making the image {name}")
    if name == BARE:
        _make_bare(target)
    else:
        make_archive(PACKAGES[name], target)
        with tarfile.open(target, "a") as archive:
            for program in _programs(name):
                archive.add(program.resolve(), _place(program), filter=_as_root)
            if julia := _julia(name):
                archive.add(julia, JULIA_PLACE, filter=_as_root)
                archive.addfile(_link("usr/bin/julia", f"/{JULIA_PLACE}/bin/julia"))


def _programs(name: str) -> list[Path]:
    """Return the programs of this machine that an image has, as far as they are there."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = [shutil.which(program, path=path) for program in PROGRAMS.get(name, ())]
    return [Path(program) for program in found if program is not None]


def _julia(name: str) -> Path | None:
    """Return the home of the Julia that tests fetched, for the image that has one."""
    programs = find_programs() if name == WITH_JULIA else None
    return None if programs is None else programs.parent


def _link(path: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


def _place(program: Path) -> str:
    return f"usr/bin/{program.name}"


def _make_bare(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "bare")
        must_run(["cc", "-static", "-Os", "-s", "-o", str(program), str(_SOURCE)])
        with tarfile.open(target, "w") as archive:
            archive.add(program, BARE_PROGRAM, filter=_as_root)


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755
    return member
