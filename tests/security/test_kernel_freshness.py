"""Kernels are forks of one interpreter; no two of them draw the same from any source of chance."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from atoll import AsyncSandbox
from tests.campaigns import Campaign
from tests.security import measured
from tests.security.guest import ATTACKS, FOLDER, parse_findings
from tests.security.sessions import attack_cell

pytestmark = pytest.mark.usefixtures("sdk")

_AT_ONCE = 8


class Draws:
    """What kernels have drawn, source by source."""

    def __init__(self) -> None:
        self.kernels = 0
        self._seen: dict[str, set[str]] = {}

    def add(self, drawn: dict[str, Any]) -> None:
        """Take in one kernel's draws; fail if another had any of them."""
        self.kernels += 1
        for source, value in drawn.items():
            seen = self._seen.setdefault(source, set())
            assert value not in seen, f"two of {self.kernels} kernels drew {value} from {source}"
            seen.add(value)

    def tell(self, which: str) -> None:
        """Report how many have drawn, and from what."""
        numpy = "with numpy" if "numpy" in self._seen else "numpy is not in the template"
        sources = f"{len(self._seen)} sources ({numpy})"
        measured.FIGURES[f"kernels that drew, {which}"] = f"{self.kernels} from {sources}"


async def put(sandbox: AsyncSandbox) -> None:
    for name in ("kernel", "draw_chance"):
        path = f"{name}.py"
        await sandbox.files.write(f"{FOLDER}/{path}", (ATTACKS / path).read_bytes())


async def draw(sandbox: AsyncSandbox, kernel: str | None = None) -> dict[str, Any]:
    cell = (await sandbox.run_code(attack_cell("draw_chance"), kernel=kernel)).check()
    return parse_findings(cell.stdout.encode())


@pytest.mark.timeout(3600)
async def test_kernels_born_with_their_sandboxes_draw_differently(campaign: Campaign) -> None:
    draws = Draws()
    left = campaign.count(10_000)

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            async with AsyncSandbox() as sandbox:
                await put(sandbox)
                draws.add(await draw(sandbox))

    async with anyio.create_task_group() as tasks:
        for _ in range(_AT_ONCE):
            tasks.start_soon(work)
    draws.tell("born with their sandboxes")


@pytest.mark.timeout(3600)
async def test_kernels_that_join_sandboxes_draw_differently(campaign: Campaign) -> None:
    draws = Draws()
    each = campaign.count(10_000) // _AT_ONCE // 2

    async def work() -> None:
        async with AsyncSandbox() as sandbox:
            await put(sandbox)
            for _ in range(each):
                draws.add(await draw(sandbox))
                another = await sandbox.kernels.open()
                draws.add(await draw(sandbox, another.id))
                await sandbox.kernels.close(another.id)
                await sandbox.restart()

    async with anyio.create_task_group() as tasks:
        for _ in range(_AT_ONCE):
            tasks.start_soon(work)
    draws.tell("joined")
