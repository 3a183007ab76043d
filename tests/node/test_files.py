"""Files over the workspace, on every engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from atoll.engines.contract import Sandbox
from atoll.errors import InvalidRequest, LimitExceeded, NotFound
from atoll.model.file import FileKind, TextPage
from atoll.node.commands import Commands
from atoll.node.files import Files
from atoll.node.trees import TreeLimits
from atoll.testing.conformance.running import soon


@pytest.fixture
def files(sandbox: Sandbox) -> Files:
    return Files(sandbox.workspace)


async def test_text_and_bytes_round_trip(files: Files) -> None:
    await files.write("a/text", "täxt\n")
    assert await files.read_text("a/text") == "täxt\n"
    await files.write("a/bytes", b"\x00\xff")
    assert await files.read("a/bytes") == b"\x00\xff"
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        await files.read_text("a/bytes")


async def test_a_hundred_megabytes_are_streamed(files: Files) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(100):
            yield bytes([number]) * (1 << 20)

    with soon():
        assert (await files.write("big", chunks())).size == 100 << 20
        sizes = 0
        async for chunk in files.stream("big"):
            assert chunk[0] == sizes >> 20
            sizes += len(chunk)
    assert sizes == 100 << 20
    with pytest.raises(LimitExceeded, match=r"max_file_bytes.*stream"):
        await files.read("big")


async def test_the_most_that_is_read_at_once_is_a_limit(sandbox: Sandbox) -> None:
    files = Files(sandbox.workspace, max_file_bytes=10)
    await files.write("fits", b"0123456789")
    assert await files.read("fits") == b"0123456789"
    with pytest.raises(LimitExceeded, match="10"):
        await files.write("too-big", b"0123456789x")
    await sandbox.workspace.write("too-big", b"0123456789x")
    with pytest.raises(LimitExceeded, match="too-big"):
        await files.read("too-big")


@pytest.mark.parametrize("data", [5, None, ["x"], "\ud800"], ids=ascii)
async def test_odd_data_is_refused(files: Files, data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="file"):
        await files.write("file", data)
    assert await files.list() == []


async def test_a_page_tells_where_the_next_begins(files: Files) -> None:
    await files.write("lines", "".join(f"line {number}\n" for number in range(1, 1201)))
    first = await files.read_page("lines")
    assert (first.start_line, first.end_line, first.next_line) == (1, 500, 501)
    assert (first.cut_by, first.text.count("\n")) == ("lines", 500)
    last = await files.read_page("lines", start_line=1001)
    assert (last.end_line, last.next_line, last.cut_by) == (1200, None, None)
    small = await files.read_page("lines", max_bytes=15)
    assert small == TextPage("line 1\nline 2\n", 1, 2, 3, "bytes")


async def test_pages_need_a_regular_file(files: Files) -> None:
    with pytest.raises(NotFound):
        await files.read_page("missing")
    await files.make_dir("folder")
    with pytest.raises(InvalidRequest):
        await files.read_page("folder")


async def test_simple_verbs_are_passed_on(files: Files) -> None:
    await files.make_dir("d")
    await files.write("d/a", b"1")
    await files.rename("d/a", "d/b")
    assert (await files.stat("d/b")).size == 1
    assert [entry.path for entry in await files.list("d")] == ["d/b"]
    await files.remove("d", recursive=True)
    assert await files.list() == []


# Trees


async def test_a_walk_sees_everything_but_follows_no_link(files: Files, sandbox: Sandbox) -> None:
    await files.write("a/b/file", b"")
    await files.write("z", b"")
    await Commands(sandbox).run("ln -s a loop; ln -s / out; ln -s . a/self", check=True)
    walked = [(entry.path, entry.kind) async for entry in files.walk()]
    assert sorted(walked) == [
        ("a", FileKind.DIRECTORY),
        ("a/b", FileKind.DIRECTORY),
        ("a/b/file", FileKind.FILE),
        ("a/self", FileKind.SYMLINK),
        ("loop", FileKind.SYMLINK),
        ("out", FileKind.SYMLINK),
        ("z", FileKind.FILE),
    ]
    assert [entry.path async for entry in files.walk("a/b")] == ["a/b/file"]


async def test_a_walk_through_a_file_or_nothing_is_refused(files: Files) -> None:
    await files.write("file", b"")
    with pytest.raises(InvalidRequest):
        await anext(files.walk("file"))
    with pytest.raises(NotFound):
        await anext(files.walk("missing"))


async def test_a_deep_tree_is_a_clear_limit(files: Files, sandbox: Sandbox) -> None:
    await Commands(sandbox).run(["sh", "-c", "mkdir d; cd d; " * 300], check=True)
    with soon(), pytest.raises(LimitExceeded, match="256 folders deep"):
        async for _ in files.walk():
            pass


async def test_a_tree_of_too_many_entries_is_a_clear_limit(sandbox: Sandbox) -> None:
    files = Files(sandbox.workspace, tree_limits=TreeLimits(entries=50))
    for number in range(51):
        await files.write(f"d{number % 3}/{number}", b"")
    with pytest.raises(LimitExceeded, match="50 entries"):
        async for _ in files.walk():
            pass


async def test_files_are_found_by_name(files: Files) -> None:
    for path in ("main.py", "src/lib.py", "src/lib.js", "src/deep/test_lib.py"):
        await files.write(path, b"")
    assert {info.path for info in await files.search_names("*.py")} == {
        "main.py",
        "src/lib.py",
        "src/deep/test_lib.py",
    }
    assert [info.path for info in await files.search_names("src/*/test_*")] == [
        "src/deep/test_lib.py"
    ]
    assert [info.path for info in await files.search_names("lib.??", "src")] == [
        "src/lib.js",
        "src/lib.py",
    ]
    assert len(await files.search_names("*", limit=2)) == 2


async def test_what_changed_since_a_survey_is_told(files: Files, sandbox: Sandbox) -> None:
    for name in ("kept", "gone", "grown", "d/inner"):
        await files.write(name, "a")
    before = await files.survey()
    assert await files.changed_since(before) == []
    await files.remove("gone")
    await files.write("grown", "more")
    await files.write("d/new", "")
    await files.make_dir("e")
    assert await files.changed_since(before) == ["d/new", "gone", "grown"]
    few = Files(sandbox.workspace, tree_limits=TreeLimits(entries=2))
    with pytest.raises(LimitExceeded):
        await few.survey()
    assert await few.changed_since(before) is None
