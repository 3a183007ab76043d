"""What two looks at a tree tell, and how many may look."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from atoll.errors import LimitExceeded
from atoll.model.file import ChangeType, FileInfo, FileKind
from atoll.model.sandbox import SandboxSpec
from atoll.node.files import Files
from atoll.node.watching import WatchLimits, compare
from atoll.testing.fake import FakeEngine


def a_file(path: str, size: int = 0, modified: float = 0.0) -> FileInfo:
    return FileInfo(path, FileKind.FILE, size, 0o644, modified)


def test_what_came_went_and_changed_is_told() -> None:
    before = {each.path: each for each in (a_file("gone"), a_file("grown"), a_file("same"))}
    now = {each.path: each for each in (a_file("grown", 1), a_file("new"), a_file("same"))}
    assert [(each.type, each.info.path) for each in compare(before, now)] == [
        (ChangeType.REMOVED, "gone"),
        (ChangeType.CHANGED, "grown"),
        (ChangeType.CREATED, "new"),
    ]
    assert list(compare(now, now)) == []


async def test_every_look_is_told_and_the_last_place_is_given_back() -> None:
    engine = FakeEngine()
    sandbox = await engine.create(SandboxSpec())
    files = Files(sandbox.workspace, watch_limits=WatchLimits(seconds=0.01, watchers=1))
    async with aclosing(files.watch()) as looks:
        assert await anext(looks) == []
        await files.write("new", b"x")
        (change,) = await anext(looks)
        assert (change.type, change.info.path) == (ChangeType.CREATED, "new")
        with pytest.raises(LimitExceeded, match="watch"):
            await anext(files.watch())
    async with aclosing(files.watch()) as looks:
        assert await anext(looks) == []
    await engine.close()


async def test_a_tree_that_is_too_large_is_refused() -> None:
    engine = FakeEngine()
    sandbox = await engine.create(SandboxSpec())
    files = Files(sandbox.workspace, watch_limits=WatchLimits(entries=2))
    for name in "abc":
        await files.write(name, b"")
    with pytest.raises(LimitExceeded):
        await anext(files.watch())
    await engine.close()
