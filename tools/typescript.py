"""The TypeScript SDK's own tools: installed by npm as its lock says, and run.

`python -m tools.typescript` checks format, lint and types of the SDK.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tools.bootstrap import ROOT

SDK = ROOT / "sdk/typescript"
_LOCK = SDK / "package-lock.json"
_INSTALLED = SDK / "node_modules/.package-lock.json"
_OLDEST_NODE = 20


class NoNode(RuntimeError):
    """This machine has no Node that can run the tools."""


def install() -> None:
    """Install the packages unless they are there; raises `NoNode`, or `CalledProcessError` with what npm said."""
    _check_node()
    with _alone():
        if not (_INSTALLED.is_file() and _INSTALLED.stat().st_mtime >= _LOCK.stat().st_mtime):
            _install()


@contextmanager
def _alone() -> Iterator[None]:
    """Hold a lock on the folder: checks and several runs of tests may come here at the same time."""
    folder = os.open(SDK, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _install() -> None:
    # Not `npm ci`: it refuses a lock that lacks what other systems need, and a registry may not have that.
    command = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run(command, cwd=SDK, check=True, capture_output=True, text=True)
    _INSTALLED.touch()


def run(program: str, *arguments: str) -> None:
    """Run a program of the packages quietly; raises as `install` does."""
    install()
    command = [str(SDK / "node_modules/.bin" / program), *arguments]
    subprocess.run(command, cwd=SDK, check=True, capture_output=True, text=True)


def _check_node() -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise NoNode(f"{program} is missing; install Node {_OLDEST_NODE} or newer with npm")
    told = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if int(told.strip().lstrip("v").split(".")[0]) < _OLDEST_NODE:
        raise NoNode(f"Node {told.strip()} is too old; install Node {_OLDEST_NODE} or newer")


def main() -> int:
    try:
        run("biome", "ci", "--colors=off", ".")
        run("tsc", "--noEmit")
    except NoNode as error:
        print(f"not checked: {error}", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(error.stdout, error.stderr, sep="\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
