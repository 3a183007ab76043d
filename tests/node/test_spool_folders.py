"""What one kernel said is never there for another, though their files are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from atoll.node import spool_folders
from atoll.node.spool_folders import FILES, SpoolFolders


def use(folders: SpoolFolders, name: str) -> Path:
    folder = folders.take(name)
    for file in FILES:
        (folder / file).write_text(f"{name} said this")
    return folder


def test_a_folder_is_used_again_and_empty(tmp_path: Path) -> None:
    folders = SpoolFolders(tmp_path / "kernels")
    first = use(folders, "a.1")
    inodes = {file: (first / file).stat().st_ino for file in FILES}
    folders.give_back(first)
    assert not first.exists()
    again = folders.take("b.2")
    assert {file: (again / file).stat().st_ino for file in FILES} == inodes
    assert all((again / file).read_bytes() == b"" for file in FILES)
    assert folders.find("b.") == [again]
    assert folders.find("a.") == []


def test_a_next_node_finds_spare_folders_and_those_in_use(tmp_path: Path) -> None:
    folders = SpoolFolders(tmp_path / "kernels")
    spare, used = use(folders, "a.1"), use(folders, "a.2")
    folders.give_back(spare)
    again = SpoolFolders(tmp_path / "kernels")
    assert again.find("a.") == [used]
    taken = again.take("b.3")
    assert (taken / "label").read_bytes() == b""
    assert len(list((tmp_path / "kernels").iterdir())) == 2


def test_folders_of_sandboxes_that_are_no_more_are_taken_back(tmp_path: Path) -> None:
    folders = SpoolFolders(tmp_path / "kernels")
    kept, left = use(folders, "a.1"), use(folders, "b.2")
    folders.keep_only(["a"])
    assert (kept / "label").read_text() == "a.1 said this"
    assert not left.exists()
    assert (folders.take("c.3") / "label").read_bytes() == b""


def test_files_are_emptied_in_the_background_and_used_only_then(tmp_path: Path) -> None:
    work: list[Callable[[], None]] = []
    folders = SpoolFolders(tmp_path / "kernels", in_background=work.append)
    first = use(folders, "a.1")
    folders.give_back(first)
    assert (folders.take("b.2") / "label").exists() is False
    for each in work:
        each()
    assert not first.exists()
    assert (folders.take("c.3") / "label").read_bytes() == b""


def test_half_a_folder_and_too_many_are_removed(tmp_path: Path) -> None:
    folders = SpoolFolders(tmp_path / "kernels")
    half = folders.take("a.1")
    (half / "stdout").write_text("secret")
    folders.give_back(half)
    assert list((tmp_path / "kernels").iterdir()) == []
    folders.give_back(half)
    used = [use(folders, f"b.{number}") for number in range(spool_folders._MOST_SPARE + 3)]
    for folder in used:
        folders.give_back(folder)
    assert len(list((tmp_path / "kernels").iterdir())) == spool_folders._MOST_SPARE
