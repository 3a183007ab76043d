"""The workspace: ordinary files and directories."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from atoll.engines.contract import MANY_BYTES, MANY_FILES, NewFile, Sandbox
from atoll.errors import InvalidRequest, LimitExceeded, NotFound, Unsupported
from atoll.model.file import FileInfo, FileKind
from atoll.model.tree import TreeLimits
from atoll.testing.conformance.running import Conformance, read_all, run_line, soon

ODD_NAMES = [
    " ",
    "-rf",
    "...",
    ".hidden",
    "a b",
    "new\nline",
    "tab\t",
    "back\\slash",
    "quote'\"",
    "ünï中🙂",
    "e\u0301",
    "é",
    "*",
    "$HOME",
    "%2e%2e",
    "\x7f\x1b[31m",
    "\udcff\udcfe",
    "x" * 255,
]

REFUSED_PATHS = [
    "..",
    "../x",
    "a/../b",
    "a/..",
    "/etc/passwd",
    "/workspace/../etc/passwd",
    "/workspacex",
    "/",
    "//workspace/a",
    "a//b",
    "nul\0byte",
    "y" * 256,
    "z/" * 2500 + "z",
    "\ud800",
]


class FileConformance(Conformance):
    """Reading, writing, listing, renaming and removing."""

    async def test_what_is_written_is_read(self, sandbox: Sandbox) -> None:
        for data in (b"", b"x", bytes(range(256)), b"a" * 65536, b"b" * 65537, b"c" * 1_000_000):
            info = await sandbox.workspace.write("file", data)
            assert (info.path, info.kind, info.size) == ("file", FileKind.FILE, len(data))
            assert await read_all(sandbox, "file") == data

    async def test_programs_and_host_see_the_same_files(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("from-host", b"host\n")
        outcome = await run_line(sandbox, "cat from-host; echo guest > from-guest")
        assert outcome.stdout == b"host\n"
        assert await read_all(sandbox, "from-guest") == b"guest\n"

    async def test_programs_may_change_what_the_host_wrote(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("a/file", b"1\n")
        assert (await run_line(sandbox, "echo 2 >> a/file && echo 3 > a/other")).code == 0
        assert await read_all(sandbox, "a/file") == b"1\n2\n"

    async def test_parents_are_made(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("a/b/c/file", b"deep")
        assert await read_all(sandbox, "/workspace/a/b/c/file") == b"deep"
        assert (await sandbox.workspace.stat("a/b")).kind is FileKind.DIRECTORY

    async def test_ten_megabytes_are_streamed_in_and_out(self, sandbox: Sandbox) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for number in range(160):
                yield bytes([number]) * 65536

        with soon():
            info = await sandbox.workspace.write("big", chunks())
        assert info.size == 10 << 20
        position = 0
        async for chunk in sandbox.workspace.read("big"):
            assert chunk == bytes([number for number in _numbers(position, len(chunk))])
            position += len(chunk)
        assert position == 10 << 20

    async def test_a_part_can_be_read(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 1000
        await sandbox.workspace.write("file", data)
        for offset, length in ((0, 0), (0, 1), (5, 10), (255_999, 5), (256_000, 1), (999_999, 1)):
            part = await _read_part(sandbox, "file", offset, length)
            assert part == data[offset : offset + length]
        assert await _read_part(sandbox, "file", 100_000, None) == data[100_000:]

    @pytest.mark.parametrize(("offset", "length"), [(-1, None), (0, -1)])
    async def test_a_negative_part_is_refused(
        self, sandbox: Sandbox, offset: int, length: int | None
    ) -> None:
        await sandbox.workspace.write("file", b"abc")
        with pytest.raises(InvalidRequest):
            await _read_part(sandbox, "file", offset, length)

    async def test_a_mode_is_kept_without_special_bits(self, sandbox: Sandbox) -> None:
        for mode in (0o600, 0o644, 0o755, 0o4755, 0o2777):
            info = await sandbox.workspace.write("file", b"", mode=mode)
            assert info.mode & 0o7777 == mode & 0o777
            assert (await sandbox.workspace.stat("file")).mode & 0o7777 == mode & 0o777

    async def test_stat_tells_kind_size_and_time(self, sandbox: Sandbox) -> None:
        before = time.time() - 5
        await sandbox.workspace.write("d/file", b"12345")
        info = await sandbox.workspace.stat("d/file")
        assert (info.path, info.name, info.kind, info.size) == (
            "d/file",
            "file",
            FileKind.FILE,
            5,
        )
        assert before < info.modified < time.time() + 5
        for path in (".", "/workspace", "/workspace/", "./"):
            assert (await sandbox.workspace.stat(path)).kind is FileKind.DIRECTORY

    # Whole or not at all

    async def test_a_reader_keeps_the_file_it_opened(self, sandbox: Sandbox) -> None:
        old, new = b"o" * 3_000_000, b"n" * 3_000_000
        await sandbox.workspace.write("file", old)
        chunks = sandbox.workspace.read("file")
        seen = await anext(chunks)
        await sandbox.workspace.write("file", new)
        seen += b"".join([chunk async for chunk in chunks])
        assert seen == old
        assert await read_all(sandbox, "file") == new

    async def test_one_of_many_writers_wins_whole(self, sandbox: Sandbox) -> None:
        contents = [bytes([number]) * 200_000 for number in range(10)]

        async def write(data: bytes) -> None:
            await sandbox.workspace.write("file", data)

        with soon():
            async with anyio.create_task_group() as tasks:
                for data in contents:
                    tasks.start_soon(write, data)
        assert await read_all(sandbox, "file") in contents
        assert [entry.name for entry in await sandbox.workspace.list()] == ["file"]

    async def test_a_write_that_breaks_off_changes_nothing(self, sandbox: Sandbox) -> None:
        async def breaks_off() -> AsyncIterator[bytes]:
            yield b"half"
            raise RuntimeError("the caller's own trouble")

        await sandbox.workspace.write("file", b"old")
        with pytest.raises(RuntimeError, match="own trouble"):
            await sandbox.workspace.write("file", breaks_off())
        assert await read_all(sandbox, "file") == b"old"
        assert [entry.name for entry in await sandbox.workspace.list()] == ["file"]

    async def test_a_cancelled_write_changes_nothing(self, sandbox: Sandbox) -> None:
        async def endless() -> AsyncIterator[bytes]:
            yield b"half"
            await anyio.sleep_forever()

        await sandbox.workspace.write("file", b"old")
        with anyio.move_on_after(0.2):
            await sandbox.workspace.write("file", endless())
        assert await read_all(sandbox, "file") == b"old"
        assert [entry.name for entry in await sandbox.workspace.list()] == ["file"]

    # Many at once

    async def test_many_files_are_written_and_read_at_once(self, sandbox: Sandbox) -> None:
        contents = {f"d{number % 7}/{number}": b"%d" % number * number for number in range(300)}
        files = [NewFile(path, data, 0o755) for path, data in contents.items()]
        await sandbox.workspace.write_many([*files, NewFile("empty/folder", None)])
        assert await sandbox.workspace.list("empty/folder") == []
        infos = [await sandbox.workspace.stat(path) for path in contents]
        assert {info.mode & 0o7777 for info in infos} == {0o755}
        assert await sandbox.workspace.read_many(infos) == list(contents.values())

    async def test_none_at_once_are_none(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write_many([])
        assert await sandbox.workspace.read_many([]) == []

    async def test_many_files_replace_those_that_are_there(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("d/file", b"old and longer", mode=0o600)
        files = [NewFile("d", None), NewFile("d/file", b"new"), NewFile("d/file", b"newest")]
        await sandbox.workspace.write_many(files)
        assert await read_all(sandbox, "d/file") == b"newest"
        assert [entry.name for entry in await sandbox.workspace.list("d")] == ["file"]

    async def test_the_first_of_many_that_fails_is_named(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("file", b"")
        files = [NewFile("a", b"a"), NewFile("file/below", b"b"), NewFile("c", b"c")]
        with pytest.raises(InvalidRequest, match="file/below"):
            await sandbox.workspace.write_many(files)
        assert [entry.name for entry in await sandbox.workspace.list()] == ["a", "file"]

    @pytest.mark.parametrize("path", [".", "..", "../x", "/etc/x", "a//b", "nul\0byte"])
    async def test_one_refused_path_among_many_writes_none(
        self, sandbox: Sandbox, path: str
    ) -> None:
        with pytest.raises(InvalidRequest):
            await sandbox.workspace.write_many([NewFile("a", b""), NewFile(path, b"")])
        with pytest.raises(InvalidRequest):
            await sandbox.workspace.read_many([_claimed("../x", 1)])
        assert await sandbox.workspace.list() == []

    async def test_too_many_at_once_are_refused(self, sandbox: Sandbox) -> None:
        many = [NewFile(f"{number}", b"") for number in range(MANY_FILES + 1)]
        with pytest.raises(InvalidRequest, match=str(MANY_FILES)):
            await sandbox.workspace.write_many(many)
        with pytest.raises(InvalidRequest, match=str(MANY_BYTES)):
            await sandbox.workspace.write_many([NewFile("large", bytes(MANY_BYTES + 1))])
        with pytest.raises(InvalidRequest, match=str(MANY_BYTES)):
            await sandbox.workspace.read_many([_claimed("large", MANY_BYTES + 1)])
        assert await sandbox.workspace.list() == []

    async def test_what_cannot_be_read_of_many_is_told_in_its_place(self, sandbox: Sandbox) -> None:
        workspace = sandbox.workspace
        await workspace.write("long", b"0123456789")
        await workspace.write("short", b"01")
        await workspace.make_dir("d")
        wanted = [_claimed(path, 5) for path in ("long", "missing", "d", "short", "long/below")]
        long, missing, directory, short, below = await workspace.read_many(wanted)
        assert (long, short) == (b"01234", b"01")
        assert isinstance(missing, NotFound)
        assert isinstance(directory, InvalidRequest)
        assert isinstance(below, InvalidRequest)

    async def test_a_file_of_the_host_goes_in_and_comes_out(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 20_000
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as target:
            source.write(data)
            source.flush()
            info = await sandbox.workspace.write_from("d/large", source.fileno(), mode=0o640)
            assert (info.size, info.mode & 0o7777) == (len(data), 0o640)
            assert await read_all(sandbox, "d/large") == data
            copied = await sandbox.workspace.read_into("d/large", target.fileno(), length=5_000_000)
            assert copied == 5_000_000
            assert os.pread(target.fileno(), len(data), 0) == data[:5_000_000]
            with pytest.raises(NotFound):
                await sandbox.workspace.read_into("missing", target.fileno(), length=1)

    async def test_only_a_regular_file_of_the_host_goes_in(self, sandbox: Sandbox) -> None:
        reading, writing = os.pipe()
        try:
            with soon(), pytest.raises(InvalidRequest):
                await sandbox.workspace.write_from("file", reading)
        finally:
            os.close(reading)
            os.close(writing)
        assert await sandbox.workspace.list() == []

    async def test_a_tree_of_the_host_goes_in_and_comes_out(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        (source / "d/empty").mkdir(parents=True)
        (source / "d/file").write_bytes(b"content")
        (source / "large").write_bytes(bytes(range(256)) * 1000)
        (source / "link").symlink_to("large")
        target.mkdir()
        with _opened(source) as folder:
            try:
                report = await sandbox.workspace.copy_in(folder, "in", TreeLimits())
            except Unsupported:
                return  # it is copied file by file
        assert (report.files, report.directories, report.total_bytes) == (2, 2, 256_007)
        assert report.skipped_paths == ["in/link"]
        assert await read_all(sandbox, "in/d/file") == b"content"
        with _opened(target) as folder:
            report = await sandbox.workspace.copy_out("in", folder, TreeLimits())
            assert (report.files, report.directories, report.skipped) == (2, 2, 0)
            with pytest.raises(FileExistsError):
                await sandbox.workspace.copy_out("in", folder, TreeLimits())
            with pytest.raises(LimitExceeded):
                await sandbox.workspace.copy_out("in", folder, TreeLimits(entries=3))
            with pytest.raises(NotFound):
                await sandbox.workspace.copy_out("missing", folder, TreeLimits())
            with pytest.raises(InvalidRequest):
                await sandbox.workspace.copy_out("../x", folder, TreeLimits())
        assert (target / "large").read_bytes() == bytes(range(256)) * 1000
        assert sorted(path.name for path in target.rglob("*")) == ["d", "empty", "file", "large"]

    # Directories

    async def test_a_listing_is_sorted_and_told_in_full(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("d/b", b"22")
        await sandbox.workspace.write("d/a", b"1")
        await sandbox.workspace.make_dir("d/c")
        entries = await sandbox.workspace.list("d")
        assert [(entry.path, entry.kind) for entry in entries] == [
            ("d/a", FileKind.FILE),
            ("d/b", FileKind.FILE),
            ("d/c", FileKind.DIRECTORY),
        ]
        assert [entry.size for entry in entries[:2]] == [1, 2]
        assert [entry.path for entry in await sandbox.workspace.list()] == ["d"]

    async def test_a_long_listing_is_whole_or_refused(self, sandbox: Sandbox) -> None:
        for number in range(300):
            await sandbox.workspace.write(f"d/{number:03}", b"")
        assert len(await sandbox.workspace.list("d", limit=300)) == 300
        with pytest.raises(LimitExceeded, match="299"):
            await sandbox.workspace.list("d", limit=299)

    async def test_making_a_directory_twice_is_fine(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.make_dir("a/b")
        await sandbox.workspace.make_dir("a/b")
        await sandbox.workspace.make_dir(".")
        assert await sandbox.workspace.list("a/b") == []

    async def test_removing_is_careful_with_directories(self, sandbox: Sandbox) -> None:
        workspace = sandbox.workspace
        await workspace.write("d/e/file", b"")
        await workspace.make_dir("empty")
        with pytest.raises(InvalidRequest):
            await workspace.remove("d")
        await workspace.remove("empty")
        await workspace.remove("d/e/file")
        await workspace.remove("d", recursive=True)
        assert await workspace.list() == []

    async def test_a_file_can_be_removed_recursively_too(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("file", b"")
        await sandbox.workspace.remove("file", recursive=True)
        assert await sandbox.workspace.list() == []

    async def test_the_workspace_itself_stays(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("file", b"")
        for call in (
            lambda: sandbox.workspace.remove(".", recursive=True),
            lambda: sandbox.workspace.rename(".", "other"),
            lambda: sandbox.workspace.rename("file", "."),
            lambda: sandbox.workspace.write(".", b""),
        ):
            with pytest.raises(InvalidRequest):
                await call()
        assert [entry.name for entry in await sandbox.workspace.list()] == ["file"]

    async def test_renaming_moves_files_and_trees(self, sandbox: Sandbox) -> None:
        workspace = sandbox.workspace
        await workspace.write("a/file", b"content")
        await workspace.rename("a", "new/parent/b")
        assert await read_all(sandbox, "new/parent/b/file") == b"content"
        await workspace.rename("new/parent/b/file", "file")
        assert [entry.name for entry in await workspace.list()] == ["file", "new"]

    async def test_renaming_replaces_a_file(self, sandbox: Sandbox) -> None:
        await sandbox.workspace.write("old", b"old")
        await sandbox.workspace.write("new", b"new")
        await sandbox.workspace.rename("new", "old")
        assert await read_all(sandbox, "old") == b"new"
        await sandbox.workspace.rename("old", "old")
        assert await read_all(sandbox, "old") == b"new"

    async def test_renaming_refuses_what_makes_no_sense(self, sandbox: Sandbox) -> None:
        workspace = sandbox.workspace
        await workspace.write("d/file", b"")
        await workspace.write("file", b"")
        for source, target in (("d", "d/inside"), ("file", "d"), ("d", "file"), ("file", "file/x")):
            with pytest.raises(InvalidRequest):
                await workspace.rename(source, target)
        assert [entry.name for entry in await workspace.list()] == ["d", "file"]

    # Names

    @pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
    async def test_odd_names_are_names(self, sandbox: Sandbox, name: str) -> None:
        workspace = sandbox.workspace
        await workspace.write(f"d/{name}", b"odd")
        assert [entry.name for entry in await workspace.list("d")] == [name]
        assert await read_all(sandbox, f"d/{name}") == b"odd"
        await workspace.rename(f"d/{name}", name)
        assert (await workspace.stat(name)).size == 3
        await workspace.remove(name)

    @pytest.mark.parametrize("path", REFUSED_PATHS, ids=lambda path: ascii(path)[:40])
    async def test_refused_paths_are_refused_everywhere(self, sandbox: Sandbox, path: str) -> None:
        workspace = sandbox.workspace
        await workspace.write("file", b"")
        for call in _calls_with(sandbox, path):
            with pytest.raises(InvalidRequest):
                await call()
        with pytest.raises(InvalidRequest):
            await workspace.rename("file", path)
        assert [entry.name for entry in await workspace.list()] == ["file"]

    async def test_what_is_missing_is_not_found(self, sandbox: Sandbox) -> None:
        workspace = sandbox.workspace
        for path in ("missing", "missing/below", "d/missing"):
            await workspace.make_dir("d")
            for call in (
                lambda path=path: workspace.stat(path),
                lambda path=path: workspace.list(path),
                lambda path=path: read_all(sandbox, path),
                lambda path=path: workspace.remove(path),
                lambda path=path: workspace.remove(path, recursive=True),
                lambda path=path: workspace.rename(path, "target"),
            ):
                with pytest.raises(NotFound):
                    await call()
        assert [entry.name for entry in await workspace.list()] == ["d"]

    async def test_the_wrong_kind_of_thing_is_refused(self, sandbox: Sandbox) -> None:
        workspace = sandbox.workspace
        await workspace.write("file", b"kept")
        await workspace.write("d/inside", b"")
        for call in (
            lambda: workspace.list("file"),
            lambda: workspace.make_dir("file"),
            lambda: workspace.make_dir("file/below"),
            lambda: workspace.write("file/below", b""),
            lambda: workspace.write("d", b""),
            lambda: read_all(sandbox, "d"),
            lambda: read_all(sandbox, "file/below"),
        ):
            with pytest.raises(InvalidRequest):
                await call()
        assert await read_all(sandbox, "file") == b"kept"


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _claimed(path: str, size: int) -> FileInfo:
    return FileInfo(path, FileKind.FILE, size, 0o644, 0.0)


def _numbers(position: int, length: int) -> list[int]:
    return [(position + index) // 65536 for index in range(length)]


async def _read_part(sandbox: Sandbox, path: str, offset: int, length: int | None) -> bytes:
    chunks = sandbox.workspace.read(path, offset=offset, length=length)
    return b"".join([chunk async for chunk in chunks])


def _calls_with(sandbox: Sandbox, path: str) -> list[Callable[[], Awaitable[object]]]:
    workspace = sandbox.workspace
    return [
        lambda: workspace.stat(path),
        lambda: workspace.list(path),
        lambda: read_all(sandbox, path),
        lambda: workspace.write(path, b"x"),
        lambda: workspace.make_dir(path),
        lambda: workspace.remove(path),
        lambda: workspace.remove(path, recursive=True),
        lambda: workspace.rename(path, "target"),
    ]
