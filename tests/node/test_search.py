"""Searching files, on every engine, and with hostile patterns."""

from __future__ import annotations

import io
import re

import anyio
import pytest

from atoll.engines.contract import Engine, Sandbox
from atoll.errors import Conflict, InvalidRequest, NotFound
from atoll.model.sandbox import SandboxSpec
from atoll.model.search import Match
from atoll.node import matcher
from atoll.node.files import Files
from atoll.node.search import SearchLimits
from atoll.testing.conformance.running import soon


@pytest.fixture
def files(sandbox: Sandbox) -> Files:
    return Files(sandbox.workspace)


async def test_matching_lines_are_found(files: Files) -> None:
    await files.write("a.py", "import os\nprint(os)\n")
    await files.write("d/b.py", "x = 1\nimport sys")
    await files.write("d/c.txt", "import nothing\n")
    result = await files.search(r"^import (\w+)", glob="*.py")
    assert result.cut_by is None
    assert sorted(result.matches, key=lambda match: match.path) == [
        Match("a.py", 1, "import os"),
        Match("d/b.py", 2, "import sys"),
    ]
    assert [match.path for match in (await files.search("import", "d/c.txt")).matches] == [
        "d/c.txt"
    ]
    assert (await files.search("no such thing")).matches == []


async def test_text_is_text_and_binary_is_not(files: Files) -> None:
    await files.write("binary", b"\x00needle\n" * 10)
    await files.write("utf8", "ein nädelchen\n")
    await files.write("latin", b"n\xe4del\n")
    assert [match.path for match in (await files.search("n.del")).matches] == ["latin", "utf8"]


async def test_matches_bytes_and_time_are_limited(files: Files) -> None:
    await files.write("many", "hit\n" * 1000)
    some = await files.search("hit", limits=SearchLimits(matches=7))
    assert (len(some.matches), some.cut_by) == (7, "matches")
    exact = await files.search("hit", limits=SearchLimits(matches=1000))
    assert (len(exact.matches), exact.cut_by) == (1000, None)
    await files.write("more", "hit\n" * 1000)
    short = await files.search("hit", limits=SearchLimits(matches=5000, total_bytes=4040))
    assert (len(short.matches), short.cut_by) == (1010, "bytes")


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"(.*)*b$", r"(\w*\w*)*!$"])
async def test_a_catastrophic_pattern_ends_in_time(files: Files, pattern: str) -> None:
    await files.write("bait", b"a" * 60 + b"\x01\n")
    await files.write("aa", b"ab!\n")
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await anyio.sleep(0.02)
            beats += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        with soon():
            result = await files.search(pattern, limits=SearchLimits(seconds=0.7))
        tasks.cancel_scope.cancel()
    assert result.cut_by == "time"
    # Meanwhile everybody else was served.
    assert beats >= 3


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?P<x", "", None, "a" * 1001, "(" * 500])
async def test_what_is_no_pattern_is_refused(files: Files, pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        await files.search(pattern)


async def test_a_search_needs_a_place(files: Files) -> None:
    with pytest.raises(NotFound):
        await files.search("x", "missing")
    with pytest.raises(InvalidRequest):
        await files.search("x", "../outside")


async def test_a_search_in_a_destroyed_sandbox_is_refused(engine: Engine) -> None:
    sandbox = await engine.create(SandboxSpec())
    await sandbox.destroy()
    with soon(), pytest.raises(Conflict):
        await Files(sandbox.workspace).search("x")


async def test_a_long_line_is_looked_at_up_to_its_cap(files: Files) -> None:
    await files.write("long", b"x" * 10_000 + b"needle\nneedle at 2\n")
    assert (await files.search("needle")).matches == [Match("long", 2, "needle at 2")]


def test_the_helper_speaks_its_protocol() -> None:
    sent = b"".join(len(piece).to_bytes(4, "big") + piece for piece in (b"a\nb", b"b\nc", b""))
    given = matcher.pieces(io.BytesIO(sent))
    found: list[tuple[int, str]] = []
    matcher.search_file(given, re.compile("b"), lambda number, text: found.append((number, text)))
    assert found == [(2, "bb")]
