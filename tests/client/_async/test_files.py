"""Files: in pieces, by name, by what is in them."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from atoll import AsyncSandbox
from atoll.errors import InvalidRequest, NotFound


async def test_a_large_file_comes_in_pieces() -> None:
    async with AsyncSandbox() as sandbox:
        data = b"0123456789" * 300_000
        await sandbox.files.write("large", data)
        pieces = [piece async for piece in sandbox.files.stream("large")]
        assert len(pieces) > 1
        assert b"".join(pieces) == data
        part = b""
        async for piece in sandbox.files.stream("large", offset=5, length=10):
            part += piece
        assert part == b"5678901234"


async def test_modes_existence_and_names() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.files.write("bin/tool", "#!/bin/sh\necho ran\n", mode=0o755)
        assert (await sandbox.commands.run("bin/tool")).stdout == b"ran\n"
        assert await sandbox.files.exists("bin/tool")
        assert not await sandbox.files.exists("bin/other")
        await sandbox.files.rename("bin/tool", "bin/other")
        assert [each.path for each in await sandbox.files.search_names("oth*")] == ["bin/other"]
        assert (await sandbox.files.stat("bin/other")).mode & 0o777 == 0o755
        await sandbox.files.make_dir("a/b/c")
        await sandbox.files.remove("a", recursive=True)
        assert not await sandbox.files.exists("a")


async def test_lines_are_searched_and_read_in_pages() -> None:
    async with AsyncSandbox() as sandbox:
        await sandbox.files.write("notes.txt", "one\ntwo\nthree\n")
        await sandbox.files.write("other.md", "two\n")
        found = await sandbox.files.search("^t", glob="*.txt")
        assert [(match.line, match.text) for match in found.matches] == [(2, "two"), (3, "three")]
        page = await sandbox.files.read_page("notes.txt", start_line=2, lines=1)
        assert (page.text, page.next_line) == ("two\n", 3)
        assert await sandbox.files.read_text("notes.txt") == "one\ntwo\nthree\n"


async def test_errors_name_the_file() -> None:
    async with AsyncSandbox() as sandbox:
        with pytest.raises(NotFound, match="missing"):
            await sandbox.files.read("missing")
        with pytest.raises(FileNotFoundError):
            async for _ in sandbox.files.stream("missing"):
                pass
        with pytest.raises(InvalidRequest, match=r"\.\."):
            await sandbox.files.read("../etc/passwd")
        with pytest.raises(InvalidRequest, match="dict"):
            await sandbox.files.write("x", {})  # type: ignore[arg-type]


async def test_changes_are_told_as_they_happen() -> None:
    # Something of each kind again and again, whenever the watching begins.
    code = "n=9; while :; do n=$((n+1)); echo x >> kept; touch new$n; rm -f new$((n-3)); sleep 0.4; done"
    async with AsyncSandbox(files={"kept": "a"}) as sandbox:
        await sandbox.commands.start(code)
        ready: list[int] = []
        seen = set()
        watching = sandbox.files.watch(on_ready=lambda: ready.append(1))
        async with aclosing(watching) as changes:
            async for change in changes:
                seen.add((change.type.value, change.info.path.rstrip("0123456789")))
                if seen >= {("changed", "kept"), ("created", "new"), ("removed", "new")}:
                    break
        assert ready == [1]
        with pytest.raises(NotFound):
            async for _ in sandbox.files.watch("nowhere"):
                pass
