"""Copying between host and workspace, on every engine."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from atoll.engines.contract import Engine, NewFile, Sandbox
from atoll.errors import (
    AtollError,
    Conflict,
    Forbidden,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unsupported,
)
from atoll.model.file import FileInfo, FileKind
from atoll.model.limits import Limits
from atoll.model.sandbox import SandboxSpec
from atoll.node.commands import Commands
from atoll.node.files import Files
from atoll.node.trees import SMALL_BYTES, TreeLimits, TreeReport
from atoll.testing.conformance.running import soon
from tests.campaigns import Campaign


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


async def test_an_upload_goes_into_what_is_there(files: Files, tmp_path: Path) -> None:
    await files.write("d/old", b"old")
    await files.write("d/kept", b"kept")
    source = tmp_path / "source"
    (source / "d/new").mkdir(parents=True)
    (source / "d/old").write_bytes(b"replaced")
    (source / "d/new/file").write_bytes(b"new")
    await files.upload(source)
    assert [info.path async for info in files.walk()] == [
        "d", "d/kept", "d/new", "d/old", "d/new/file"
    ]  # fmt: skip
    assert await files.read("d/old") == b"replaced"
    assert await files.read("d/kept") == b"kept"


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o644, 0o666, 0o755, 0o777])
async def test_modes_go_in_as_they_are(files: Files, tmp_path: Path, mode: int) -> None:
    for name in ("small", "new/small", "large"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(10 if "small" in name else SMALL_BYTES * 3))
        path.chmod(mode)
    await files.upload(tmp_path)
    for name in ("small", "new/small", "large"):
        assert (await files.stat(name)).mode & 0o7777 == mode


async def test_files_of_every_size_come_back_the_same(
    files: Files, tmp_path: Path, campaign: Campaign
) -> None:
    edges = [
        0,
        1,
        4095,
        4096,
        4097,
        SMALL_BYTES - 1,
        SMALL_BYTES,
        SMALL_BYTES + 1,
        1 << 18,
        3 << 20,
    ]
    sizes = [*edges, *(campaign.random.randrange(300_000) for _ in range(campaign.count(400)))]
    source = tmp_path / "source"
    for number, size in enumerate(sizes):
        path = source / f"d{number % 5}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(campaign.random.randbytes(size))
    report = await files.upload(source, "in")
    assert (report.files, report.total_bytes) == (len(sizes), sum(sizes))
    report = await files.download("in", tmp_path / "out")
    assert (report.files, report.total_bytes) == (len(sizes), sum(sizes))
    assert _everything(tmp_path / "out") == _everything(source)


async def test_a_file_where_a_folder_has_to_be_stops_an_upload(
    files: Files, sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/file").write_bytes(b"x")
    await files.write("d", b"a file")
    with pytest.raises(InvalidRequest, match="'d"):
        await files.upload(tmp_path)
    await files.remove("d")
    await Commands(sandbox).run("mkdir /tmp/outside; ln -s /tmp/outside d", check=True)
    with pytest.raises(InvalidRequest):
        await files.upload(tmp_path)
    result = await Commands(sandbox).run("test -e /tmp/outside/file")
    assert result.exit_code == 1


@pytest.mark.parametrize("full", ["bytes", "inodes"])
async def test_an_upload_that_does_not_fit_is_told(
    engine: Engine, tmp_path: Path, full: str
) -> None:
    limits = Limits(workspace_bytes=1 << 20) if full == "bytes" else Limits(inodes=64)
    try:
        sandbox = await engine.create(SandboxSpec(limits=limits))
    except Unsupported as error:
        pytest.skip(str(error))
    try:
        for number in range(100):
            (tmp_path / f"{number}").write_bytes(bytes(50_000))
        with pytest.raises(LimitExceeded, match=r"'\d+'"):
            await Files(sandbox.workspace).upload(tmp_path)
        names = [entry.name for entry in await sandbox.workspace.list()]
        assert not [name for name in names if name.startswith(".")]
        assert {entry.size for entry in await sandbox.workspace.list()} == {50_000}
    finally:
        await sandbox.destroy()


async def test_a_file_that_is_closed_to_its_owner_is_left_out(
    files: Files, sandbox: Sandbox, tmp_path: Path
) -> None:
    if sandbox.info.engine == "fake":
        return  # its files have modes, but nobody is kept out by them
    for name in ("a", "b/closed", "large", "c/inside"):
        await files.write(name, bytes(100_000 if name == "large" else 10))
    await Commands(sandbox).run("chmod 000 b/closed large c", check=True)
    report = await files.download(".", tmp_path / "target")
    assert (report.files, report.directories) == (1, 2)
    assert sorted(report.skipped_paths) == ["b/closed", "c", "large"]
    with pytest.raises(Forbidden):
        await files.download("large", tmp_path / "large")
    assert not (tmp_path / "large").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_of_the_host_that_may_not_be_read_stops_an_upload(
    files: Files, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "secret").chmod(0)
    with pytest.raises(InvalidRequest, match="secret"):
        await files.upload(tmp_path)


async def test_a_copy_ends_with_its_sandbox(engine: Engine, tmp_path: Path) -> None:
    sandbox = await engine.create(SandboxSpec())
    files = Files(sandbox.workspace)
    for number in range(3):
        (tmp_path / f"{number}").write_bytes(bytes(50 << 20))

    async def copy() -> None:
        with suppress(Conflict):
            while True:
                await files.upload(tmp_path)

    with soon():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(copy)
            await anyio.sleep(0.05)
            await sandbox.destroy()


async def test_a_copy_that_is_given_up_leaves_the_sandbox_usable(
    files: Files, sandbox: Sandbox, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / f"{number}").write_bytes(bytes(50 << 20))
    for _ in range(5):
        with anyio.move_on_after(0.02):
            await files.upload(tmp_path, "in")
    with soon():
        await files.upload(tmp_path, "in")
        assert sorted(entry.name for entry in await files.list("in")) == ["0", "1", "2"]


class LyingWorkspace:
    """A workspace whose engine was taken over: it lists names that lead elsewhere."""

    def __init__(self, names: Sequence[str], size: int = 4) -> None:
        self._names = names
        self._size = size

    async def stat(self, path: str) -> FileInfo:
        return FileInfo(path, FileKind.DIRECTORY, 0, 0o755, 0)

    async def list(self, path: str = ".", *, limit: int = 10_000) -> Sequence[FileInfo]:
        return [FileInfo(name, FileKind.FILE, self._size, 0o644, 0) for name in self._names]

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        yield b"evil"

    async def write(
        self, path: str, data: bytes | AsyncIterator[bytes], *, mode: int = 0o644
    ) -> FileInfo:
        raise NotImplementedError

    async def write_many(self, files: Sequence[NewFile]) -> None:
        raise NotImplementedError

    async def read_many(self, files: Sequence[FileInfo]) -> Sequence[bytes | AtollError]:
        return [b"evil"] * len(files)

    async def write_from(self, path: str, descriptor: int, *, mode: int = 0o644) -> FileInfo:
        raise NotImplementedError

    async def read_into(self, path: str, descriptor: int, *, length: int) -> int:
        return os.write(descriptor, b"evil")

    async def copy_in(self, folder: int, path: str, limits: TreeLimits) -> TreeReport:
        raise Unsupported("not here")

    async def copy_out(self, path: str, folder: int, limits: TreeLimits) -> TreeReport:
        raise Unsupported("not here")

    async def make_dir(self, path: str) -> None:
        raise NotImplementedError

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        raise NotImplementedError

    async def rename(self, source: str, target: str) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("size", [4, SMALL_BYTES + 1])
@pytest.mark.parametrize("name", ["../evil", "..", "/tmp/evil", "a/../../evil", "", "a//b", "x\0y"])
async def test_a_name_that_leads_elsewhere_is_never_used(
    tmp_path: Path, name: str, size: int
) -> None:
    target = tmp_path / "a/target"
    target.parent.mkdir()
    with pytest.raises(InternalError):
        await Files(LyingWorkspace([name], size)).download(".", target)
    assert _everything(tmp_path) == {"a": None, "a/target": None}


async def test_a_copy_that_breaks_off_leaves_no_part(tmp_path: Path) -> None:
    class Breaking(LyingWorkspace):
        async def read_into(self, path: str, descriptor: int, *, length: int) -> int:
            os.write(descriptor, b"ha")
            raise Conflict("the sandbox is gone")

    with pytest.raises(Conflict, match="gone"):
        await Files(Breaking(["file"], SMALL_BYTES + 1)).download(".", tmp_path / "target")
    assert _everything(tmp_path) == {"target": None}
