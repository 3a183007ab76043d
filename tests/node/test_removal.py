"""Trees are removed whole, and nothing else is, whatever somebody has planted in them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.node.removal import remove_tree

DEPTH = 2100  # deeper than a path can be long, and than a process has descriptors by default


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def dig(top: Path, depth: int) -> None:
    """Make directories in each other."""
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def test_links_are_removed_and_not_followed(tmp_path: Path, folder: int) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep/canary").write_text("alive")
    (tree / "a/b").mkdir(parents=True)
    for place in (tree, tree / "a", tree / "a/b"):
        (place / "folder").symlink_to(outside)
        (place / "file").symlink_to(outside / "deep/canary")
        (place / "up").symlink_to("../../outside")
        (place / "loop").symlink_to("loop")
        os.link(outside / "deep/canary", place / "second-name")
        os.mkfifo(place / "pipe")
    remove_tree(folder, "tree")
    assert not tree.exists()
    assert (outside / "deep/canary").read_text() == "alive"


def test_a_link_in_place_of_the_tree_is_removed_itself(tmp_path: Path, folder: int) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/canary").touch()
    (tmp_path / "tree").symlink_to("outside")
    remove_tree(folder, "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (tmp_path / "outside/canary").exists()


def test_depth_does_not_matter(tmp_path: Path, folder: int) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    dig(tree, DEPTH)
    before = len(os.listdir("/proc/self/fd"))
    remove_tree(folder, "tree")
    assert not tree.exists()
    assert len(os.listdir("/proc/self/fd")) == before


def test_modes_do_not_matter(tmp_path: Path, folder: int) -> None:
    shut = tmp_path / "tree/shut/inner"
    shut.mkdir(parents=True)
    (shut / "file").touch(mode=0)
    for path in (shut, shut.parent, shut.parent.parent):
        path.chmod(0)
    try:
        remove_tree(folder, "tree")
        assert not (tmp_path / "tree").exists()
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", str(tmp_path)], check=True)


def test_names_that_look_like_those_of_the_removal_are_no_trouble(
    tmp_path: Path, folder: int
) -> None:
    for number in range(3):
        (tmp_path / f"tree/{number}/-1/\udcff").mkdir(parents=True)
    remove_tree(folder, "tree")
    assert list(tmp_path.iterdir()) == []


def test_what_is_gone_already_is_fine(folder: int) -> None:
    remove_tree(folder, "never-was")
