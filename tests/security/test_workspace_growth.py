"""T13, T67: whatever a sandbox leaves in a workspace, it can be enlarged, and everything in it is still there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.engines.namespaces.engine import NamespaceEngine
from atoll.engines.workspace_images import missing_for_images
from atoll.model.ids import WorkspaceId
from atoll.model.limits import Limits
from atoll.model.sandbox import SandboxRequest, SandboxSpec
from atoll.model.sizes import MIB
from atoll.node.commands import Commands
from atoll.node.workspaces import Workspaces

LAGOON = WorkspaceId("lagoon")
# Room for more files comes with each further 128 MiB.
SMALL, LARGE = 16 * MIB, 192 * MIB

FILES = """
import os
count = 0
try:
    while True:
        os.close(os.open(f"f{count}", os.O_CREAT | os.O_WRONLY))
        count += 1
except OSError as error:
    print(os.strerror(error.errno))
"""

# What to leave, and how to see that it is still there.
LEFT = {
    "as many files as fit": (f"python3 -c '{FILES}'", "ls | wc -l"),
    "all bytes": ("cat /dev/zero > all; cat /dev/zero > more", "cat all more | sha256sum"),
    "a file in the checker's place": ("echo mine > lost+found", "cat lost+found"),
    "a link in the checker's place": ("ln -s /etc lost+found", "readlink lost+found"),
    "a directory in the checker's place": ("mkdir lost+found", "stat -c %F lost+found"),
}


@pytest.fixture(autouse=True)
def images() -> None:
    """A folder has nothing that would have to be enlarged."""
    if missing := missing_for_images():
        pytest.skip(f"images need {', '.join(missing)}")


@asynccontextmanager
async def lodge(
    engine: NamespaceEngine, workspaces: Workspaces, size: int
) -> AsyncIterator[Commands]:
    limits = Limits(workspace_bytes=size)
    request = SandboxRequest(SandboxSpec(limits=limits), workspace=LAGOON)
    hold = workspaces.take(request)
    sandbox = await engine.create(replace(request.spec, workspace=hold.kept))
    try:
        yield Commands(sandbox)
    finally:
        await sandbox.destroy()
        hold.release()


@pytest.mark.parametrize("left", LEFT)
async def test_whatever_is_left_it_can_grow(
    engine: NamespaceEngine, tmp_path: Path, left: str
) -> None:
    leave, look = LEFT[left]
    workspaces = Workspaces(tmp_path / "workspaces")
    async with lodge(engine, workspaces, SMALL) as commands:
        await commands.run(leave)
        before = (await commands.run(look)).stdout
        names = (await commands.run("ls -a | sha256sum")).stdout
    async with lodge(engine, workspaces, LARGE) as commands:
        assert before and (await commands.run(look)).stdout == before
        assert (await commands.run("ls -a | sha256sum")).stdout == names
        # There is room again, for files and for bytes.
        written = await commands.run("head -c 8M /dev/zero > new && stat -c %s new")
        assert written.stdout == b"%d\n" % (8 * MIB), written
