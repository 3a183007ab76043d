"""Copying between host and workspace, on every engine."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import pytest

from atoll.engines.contract import Sandbox
from atoll.errors import Conflict, InternalError, InvalidRequest, LimitExceeded, NotFound
from atoll.model.file import FileInfo, FileKind
from atoll.node.commands import Commands
from atoll.node.files import Files
from atoll.node.trees import TreeLimits
from atoll.testing.conformance.running import soon


@pytest.fixture
def files(sandbox: Sandbox) -> Files:
    return Files(sandbox.workspace)


def _everything(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


async def test_a_file_goes_in_and_comes_out(files: Files, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content" * 100_000)
    source.chmod(0o755)
    report = await files.upload(source, "in/place")
    assert (report.files, report.total_bytes) == (1, 700_000)
    assert (await files.stat("in/place")).mode & 0o777 == 0o755
    await files.download("in/place", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == source.read_bytes()
    assert (tmp_path / "out").stat().st_mode & 0o100


async def test_a_tree_goes_in_and_comes_out(files: Files, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a/empty").mkdir(parents=True)
    (source / "a/ünï\n").write_bytes(b"odd")
    (source / "b").write_bytes(b"")
    report = await files.upload(source)
    assert (report.files, report.directories, report.skipped) == (2, 2, 0)
    report = await files.download(".", tmp_path / "target")
    assert (report.files, report.directories) == (2, 2)
    assert _everything(tmp_path / "target") == _everything(source)
    await files.upload(source, "deeper/still")
    assert await files.read("deeper/still/a/ünï\n") == b"odd"


async def test_links_of_the_host_are_not_followed(files: Files, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    source = tmp_path / "source"
    source.mkdir()
    (source / "link").symlink_to(secret)
    (source / "folder").symlink_to(tmp_path)
    os.mkfifo(source / "fifo")
    (source / "file").write_bytes(b"x")
    with soon():
        report = await files.upload(source)
    assert (report.files, report.skipped) == (1, 3)
    assert report.skipped_paths == ["fifo", "folder", "link"]
    assert [entry.path for entry in await files.list()] == ["file"]


async def test_links_of_the_sandbox_are_skipped(
    files: Files, sandbox: Sandbox, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    await files.write("d/file", b"x")
    line = f"ln -s {secret} link; ln -s {tmp_path} folder; ln -s .. d/up; mkfifo d/fifo"
    await Commands(sandbox).run(line, check=True)
    with soon():
        report = await files.download(".", tmp_path / "target")
    assert (report.files, report.directories, report.skipped) == (1, 1, 4)
    assert _everything(tmp_path / "target") == {"d": None, "d/file": b"x"}
    for path in ("link", "d/fifo"):
        with soon(), pytest.raises(InvalidRequest):
            await files.download(path, tmp_path / "never")
    assert not (tmp_path / "never").exists()


async def test_nothing_of_the_host_is_replaced(files: Files, tmp_path: Path) -> None:
    await files.write("file", b"new")
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_bytes(b"old")
    with pytest.raises(Conflict, match="file"):
        await files.download(".", target)
    with pytest.raises(Conflict):
        await files.download("file", target / "file")
    with pytest.raises(Conflict):
        await files.download(".", target / "file")
    assert (target / "file").read_bytes() == b"old"


async def test_links_waiting_on_the_host_are_not_followed(files: Files, tmp_path: Path) -> None:
    await files.write("d/file", b"new")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "d").symlink_to(elsewhere)
    with pytest.raises((Conflict, InvalidRequest)):
        await files.download(".", target)
    (target / "file").symlink_to(elsewhere / "made")
    with pytest.raises(Conflict):
        await files.download("d/file", target / "file")
    assert list(elsewhere.iterdir()) == []


async def test_what_is_missing_on_either_side_is_told(files: Files, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="host"):
        await files.upload(tmp_path / "missing")
    with pytest.raises(NotFound):
        await files.download("missing", tmp_path / "target")
    await files.write("file", b"")
    with pytest.raises(NotFound, match="host"):
        await files.download("file", tmp_path / "no/such/folder/file")


async def test_limits_hold_both_ways(sandbox: Sandbox, tmp_path: Path) -> None:
    files = Files(sandbox.workspace, tree_limits=TreeLimits(entries=3, depth=3, total_bytes=100))
    for number in range(4):
        (tmp_path / f"f{number}").write_bytes(b"")
    with pytest.raises(LimitExceeded, match="3 entries"):
        await files.upload(tmp_path)
    big = tmp_path / "f0"
    big.write_bytes(bytes(101))
    with pytest.raises(LimitExceeded, match="100 bytes"):
        await files.upload(big, "big")
    await sandbox.workspace.write("big", bytes(101))
    with pytest.raises(LimitExceeded, match="100 bytes"):
        await files.download("big", tmp_path / "out")
    await sandbox.workspace.remove("big")
    await sandbox.workspace.write("a/b/c/d/e/f", b"")
    with pytest.raises(LimitExceeded, match=r"3 entries|3 folders"):
        await files.download("a", tmp_path / "out")


class LyingWorkspace:
    """A workspace whose engine was taken over: it lists names that lead elsewhere."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    async def stat(self, path: str) -> FileInfo:
        return FileInfo(path, FileKind.DIRECTORY, 0, 0o755, 0)

    async def list(self, path: str = ".", *, limit: int = 10_000) -> Sequence[FileInfo]:
        return [FileInfo(name, FileKind.FILE, 4, 0o644, 0) for name in self._names]

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        yield b"evil"

    async def write(
        self, path: str, data: bytes | AsyncIterator[bytes], *, mode: int = 0o644
    ) -> FileInfo:
        raise NotImplementedError

    async def make_dir(self, path: str) -> None:
        raise NotImplementedError

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        raise NotImplementedError

    async def rename(self, source: str, target: str) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("name", ["../evil", "..", "/tmp/evil", "a/../../evil", "", "a//b", "x\0y"])
async def test_a_name_that_leads_elsewhere_is_never_used(tmp_path: Path, name: str) -> None:
    target = tmp_path / "a/target"
    target.parent.mkdir()
    with pytest.raises(InternalError):
        await Files(LyingWorkspace([name])).download(".", target)
    assert _everything(tmp_path) == {"a": None, "a/target": None}


async def test_a_copy_that_breaks_off_leaves_no_part(tmp_path: Path) -> None:
    class Breaking(LyingWorkspace):
        async def read(
            self, path: str, *, offset: int = 0, length: int | None = None
        ) -> AsyncGenerator[bytes, None]:
            yield b"ha"
            raise Conflict("the sandbox is gone")

    with pytest.raises(Conflict, match="gone"):
        await Files(Breaking(["file"])).download(".", tmp_path / "target")
    assert _everything(tmp_path) == {"target": None}
