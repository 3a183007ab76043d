"""The Debian packages that Atoll needs beside Python and git: the one list, and how to get them.

Standard library only: it runs before there is an environment.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SystemPackage:
    """A package, and how to see that what we need of it is there, whoever installed it."""

    name: str
    is_present: Callable[[], bool]


class MissingPackages(Exception):
    """Some packages are missing and could not be installed; the message names the way out."""


def program(*names: str) -> Callable[[], bool]:
    """Whether one of these programs is on the path."""
    return lambda: any(shutil.which(name) for name in names)


def file(path: str) -> Callable[[], bool]:
    return Path(path).exists


def all_files(*paths: str) -> Callable[[], bool]:
    return lambda: all(Path(path).exists() for path in paths)


def any_file(pattern: str) -> Callable[[], bool]:
    return lambda: bool(glob.glob(pattern))


def library(name: str) -> Callable[[], bool]:
    def loads() -> bool:
        try:
            ctypes.CDLL(name)
        except OSError:
            return False
        return True

    return loads


def module(name: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(name) is not None


def system_python_module(name: str) -> Callable[[], bool]:
    """Whether Debian's own Python, where there is one, has the module."""

    def imports() -> bool:
        python = "/usr/bin/python3"
        if not Path(python).exists():
            return True
        command = [python, "-Ic", f"import {name}"]
        return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0

    return imports


def r_package(name: str) -> SystemPackage:
    """Return the package that Debian has of one of R's."""
    return SystemPackage(f"r-cran-{name.lower()}", file(f"/usr/lib/R/site-library/{name}"))


GIT = SystemPackage("git", program("git"))
GCC = SystemPackage("gcc", program("cc", "gcc", "clang"))

TO_SET_UP = (
    SystemPackage(f"python3.{sys.version_info.minor}-venv", module("ensurepip")),
    GCC,
    SystemPackage("libc6-dev", file("/usr/include/stdio.h")),
    SystemPackage("libseccomp2", library("libseccomp.so.2")),
)

# Benchmarks run containers, too, and install what they need of these.
DOCKER = SystemPackage("docker.io", all_files("/usr/bin/docker", "/usr/sbin/dockerd"))
MMDEBSTRAP = SystemPackage("mmdebstrap", program("mmdebstrap"))
PODMAN = SystemPackage("podman", file("/usr/bin/podman"))
RUNSC = SystemPackage("runsc", program("runsc"))

# What the tests run inside sandboxes or use to look at them.
TO_TEST = (
    GIT,
    SystemPackage("btrfs-progs", program("mkfs.btrfs")),
    SystemPackage("nodejs", program("node")),
    SystemPackage("postgresql", any_file("/usr/lib/postgresql/*/bin/initdb")),
    SystemPackage("procps", program("ps")),
    # Programs that have to find their way out of a sandbox by themselves.
    SystemPackage("curl", program("curl")),
    SystemPackage("npm", program("npm")),
    SystemPackage("openssl", program("openssl")),
    SystemPackage("python3-requests", system_python_module("requests")),
    SystemPackage("python3-websocket", system_python_module("websocket")),
    SystemPackage("r-base-core", program("Rscript")),
    *map(
        r_package,
        "data.table devtools ggplot2 glmnet htmlwidgets httr2 randomForest RSQLite tidyverse".split(),
    ),
    SystemPackage("wget", program("wget")),
    # Guests with other kernels and cgroups; theirs come from the same archive, but are not installed.
    SystemPackage("e2fsprogs", file("/usr/sbin/mke2fs")),
    SystemPackage("qemu-system-x86", program("qemu-system-x86_64")),
    SystemPackage("sqlite3", program("sqlite3")),
    SystemPackage("strace", program("strace")),
    # Container daemons and a registry of our own, their runtimes, and what images are made with.
    SystemPackage("crun", file("/usr/bin/crun")),
    DOCKER,
    SystemPackage("docker-registry", program("docker-registry")),
    MMDEBSTRAP,
    PODMAN,
    RUNSC,
    # The ordinary user's environment is made from the system's Python.
    SystemPackage("python3-venv", system_python_module("ensurepip")),
)

# What benchmarks measure Atoll against or count with; each is installed by the one that needs it.
BUBBLEWRAP = SystemPackage("bubblewrap", program("bwrap"))
PERF = SystemPackage("linux-perf", program("perf"))
TINYPROXY = SystemPackage("tinyproxy", program("tinyproxy"))


def ensure(packages: Sequence[SystemPackage], purpose: str) -> None:
    """Install what is missing, or raise `MissingPackages` where we cannot."""
    missing = [package for package in packages if not package.is_present()]
    if not missing:
        return
    names = " ".join(package.name for package in missing)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingPackages(
            f"{purpose} needs these system packages: {names}\n"
            f"install them as root (Debian, Ubuntu): apt-get install {names}"
        )
    print(f"atoll: installing system packages: {names}", file=sys.stderr)
    apt_get("update")
    apt_get("install", "--yes", "--no-install-recommends", *names.split())
    still = " ".join(package.name for package in missing if not package.is_present())
    if still:
        raise MissingPackages(f"apt-get installed {names}, but this is still not usable: {still}")


def apt_get(*arguments: str) -> None:
    # Another apt-get, such as the machine's daily update, may hold the lock for a while.
    done = subprocess.run(
        ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        raise MissingPackages(f"apt-get {' '.join(arguments)} failed:\n{done.stdout.rstrip()}")
