"""Workspaces that outlive their sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.engines.contract import Engine, Feature
from atoll.errors import LimitExceeded
from atoll.model.limits import Limits
from atoll.model.sandbox import KeptWorkspace, SandboxSpec
from atoll.model.sizes import MIB
from atoll.testing.conformance.running import Conformance, eventually, needs, read_all, run_line

_SIZE = 32 * MIB


class WorkspaceConformance(Conformance):
    """What one sandbox leaves in a workspace that is kept, the next one finds."""

    @pytest.fixture
    def kept(self, engine: Engine, tmp_path: Path) -> KeptWorkspace:
        """A workspace that nobody has used yet."""
        needs(engine, Feature.PERSISTENT_WORKSPACES)
        directory = tmp_path / "contents"
        directory.mkdir(mode=0o700)
        return KeptWorkspace(str(directory), _SIZE)

    async def test_a_kept_workspace_is_empty_and_the_sandboxs_own(
        self, engine: Engine, kept: KeptWorkspace
    ) -> None:
        sandbox = await engine.create(SandboxSpec(workspace=kept))
        try:
            assert await sandbox.workspace.list() == []
            line = '[ "$PWD" = /workspace ] && [ "$(stat -c %u .)" = "$(id -u)" ] && touch new'
            assert (await run_line(sandbox, line)).code == 0
            info = sandbox.info.limits
            assert info.limits.workspace_bytes == _SIZE
            assert info.enforced_by["workspace_bytes"] in ("image", "watchdog", "engine")
        finally:
            await sandbox.destroy()

    async def test_files_of_a_kept_workspace_are_the_next_sandboxs(
        self, engine: Engine, kept: KeptWorkspace
    ) -> None:
        first = await engine.create(SandboxSpec(workspace=kept))
        await first.workspace.write("by/host", b"from outside\x00\xff")
        line = "mkdir -m 700 own && echo inside > own/file && ln -s file own/link && chmod 751 own/file"
        assert (await run_line(first, line)).code == 0
        await first.destroy()
        second = await engine.create(SandboxSpec(workspace=kept))
        try:
            assert [each.path for each in await second.workspace.list()] == ["by", "own"]
            assert await read_all(second, "by/host") == b"from outside\x00\xff"
            found = await run_line(
                second, "cat own/link; stat -c %a own own/file; echo more >> own/file; cat own/file"
            )
            assert found.stdout == b"inside\n700\n751\ninside\nmore\n"
            await second.workspace.remove("own", recursive=True)
        finally:
            await second.destroy()
        third = await engine.create(SandboxSpec(workspace=kept))
        try:
            assert [each.path for each in await third.workspace.list()] == ["by"]
        finally:
            await third.destroy()

    async def test_other_trees_of_a_sandbox_with_a_kept_workspace_go_with_it(
        self, engine: Engine, kept: KeptWorkspace
    ) -> None:
        for _ in range(2):
            sandbox = await engine.create(SandboxSpec(workspace=kept))
            found = await run_line(sandbox, "ls /tmp /dev/shm ~; touch /tmp/a /dev/shm/a ~/a")
            await sandbox.destroy()
            assert found.code == 0
            assert b"a" not in found.stdout.splitlines()

    async def test_a_kept_workspace_may_be_larger_than_memory(
        self, engine: Engine, kept: KeptWorkspace
    ) -> None:
        limits = Limits(memory_bytes=_SIZE, enforcement="best_effort")
        sandbox = await engine.create(SandboxSpec(workspace=kept, limits=limits))
        try:
            assert sandbox.info.limits.limits.workspace_bytes == _SIZE
        finally:
            await sandbox.destroy()

    async def test_a_kept_workspace_that_is_full_says_so(
        self, engine: Engine, kept: KeptWorkspace
    ) -> None:
        sandbox = await engine.create(SandboxSpec(workspace=kept))
        try:
            # Bounded, in case nothing stops it.
            line = "for i in $(seq 64); do head -c 1048576 /dev/urandom > f$i || exit 7; sleep 0.05; done"
            assert (await run_line(sandbox, line)).code != 0

            async def refused() -> bool | None:
                try:
                    await sandbox.workspace.write("one-more", b"x" * 2 * MIB)
                except LimitExceeded:
                    return True
                return None

            assert await eventually(refused)
            for each in await sandbox.workspace.list():
                await sandbox.workspace.remove(each.path)

            async def written() -> bool | None:
                try:
                    await sandbox.workspace.write("fits-again", b"x")
                except LimitExceeded:
                    return None
                return True

            assert await eventually(written)
        finally:
            await sandbox.destroy()
