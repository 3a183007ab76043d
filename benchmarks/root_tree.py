"""A small system with Python, made from the distribution's packages: the root of all contained peers."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from tools.debian_tree import VARIANT, make_archive, suite
from tools.places import Failed, digest_of, made_once, must_run, own_folder, say

# `python` without a number is what llm-sandbox starts.
PACKAGES = ("python3", "python-is-python3")


@dataclass(frozen=True, slots=True)
class RootTree:
    """The same tree as an archive and unpacked."""

    tarball: Path
    directory: Path
    digest: str


def root_tree_digest() -> str:
    """Return what the tree is made from, as a short name."""
    return digest_of(suite(), platform.machine(), VARIANT, PACKAGES, os.geteuid())


def place() -> Path:
    """Return the folder that goes with the tree and holds all that benchmarks keep."""
    return own_folder(f"atoll-bench-{root_tree_digest()}")


def make_root_tree() -> RootTree:
    """Return the tree, made on first use; mmdebstrap has to be there."""
    if os.geteuid() != 0:
        raise Failed("the root tree of contained peers is made by root only")
    folder = place()
    tarball = made_once(folder / "root.tar", _make_tarball)
    directory = made_once(folder / "root", lambda target: _unpack(tarball, target))
    return RootTree(tarball, directory, root_tree_digest())


def _make_tarball(target: Path) -> None:
    say("making a root tree with Python from the distribution's packages")
    make_archive(PACKAGES, target)


def _unpack(tarball: Path, target: Path) -> None:
    target.mkdir(mode=0o755)
    unpack = ["tar", "--extract", "--numeric-owner", "--preserve-permissions"]
    must_run([*unpack, "--file", str(tarball), "--directory", str(target)])
