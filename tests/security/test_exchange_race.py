"""T39: a folder and a link that leads out, exchanged as fast as can be, against the files' API."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import pytest

from atoll.errors import Conflict, Forbidden, InvalidRequest, NotFound
from atoll.model.file import FileInfo
from atoll.node.commands import Commands
from atoll.node.files import Files
from atoll.node.trees import TreeReport
from tests.campaigns import Campaign
from tests.security import measured
from tests.security.canaries import OUTSIDE, Canary, make_canary
from tests.security.guest import Guest, parse_findings

WANTED_RATE = 30_000
# The two are one name at any moment: what a call finds there is a matter of luck.
MEANWHILE = (InvalidRequest, NotFound, Forbidden, Conflict)
INSIDE = b"inside"

Seen = bytes | Sequence[FileInfo] | TreeReport | FileInfo | None
Action = Callable[[], Awaitable[Seen]]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("where", ["on the host", "in the sandbox"])
async def test_a_race_of_folder_and_link_reaches_nothing_outside(
    guest: Guest, campaign: Campaign, tmp_path: Path, where: str
) -> None:
    canary = make_canary(tmp_path)
    await prepare(guest, canary, str(canary.folder) if where == "on the host" else OUTSIDE)
    program = await guest.put_program("exchange")
    seconds = (60.0 if campaign.long else 5.0) / 2
    alone = parse_findings(await guest.entry(guest.sandbox, (program, "real", "link", "0.5")))
    race = Race(guest.files, tmp_path)
    # On a busy machine it may take some rounds until every kind of call has hit the folder at least once.
    for _ in range(10):
        async with Commands(guest.sandbox) as commands:
            process = await commands.start((program, "real", "link", str(seconds)))
            await race.run(seconds)
            await process.wait()
            raced = parse_findings(process.logs())
        assert raced["failures"] == 0
        if all(race.done[name] > 0 for name in race.actions):
            break
    assert canary.word not in repr(race.seen)
    race.check_copies(canary)
    canary.check_host()
    await canary.check_guest(guest)
    # Every kind of call hit the folder at least once, so the race was one.
    assert all(race.done[name] > 0 for name in race.actions), race.done
    note_rates(where, alone, raced, race)


async def prepare(guest: Guest, canary: Canary, target: str) -> None:
    line = (
        f"mkdir -p real {OUTSIDE}; ln -s {target} link;"
        " printf inside > real/canary; cp real/canary real/kept;"
        f" for name in canary kept; do printf %s {canary.word} > {OUTSIDE}/$name; done"
    )
    await Commands(guest.sandbox).run(line, check=True)


def note_rates(where: str, alone: dict[str, float], raced: dict[str, float], race: Race) -> None:
    rates = [found["count"] / found["seconds"] for found in (alone, raced)]
    busy = "" if rates[0] >= WANTED_RATE else " (this machine is busy: too few)"
    measured.FIGURES[f"exchanges per second, link out of the workspace {where}"] = (
        f"{rates[0]:,.0f} alone{busy}, {rates[1]:,.0f} against"
        f" {race.done.total() + race.refused.total():,} calls ({race.refused.total():,} refused)"
    )


class Race:
    """Calls of every kind on a name that is a folder now and a link then."""

    def __init__(self, files: Files, host: Path) -> None:
        self._files = files
        self._host = host
        self._number = 0
        self.seen: list[Seen] = []
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.actions: dict[str, Action] = {
            "read": lambda: files.read("real/canary"),
            "page": self._page,
            "stream": lambda: collect(files.stream("real/kept")),
            "list": lambda: files.list("real"),
            "stat": lambda: files.stat("real/canary"),
            "write": lambda: files.write("real/canary", INSIDE),
            "stream in": lambda: files.write("real/kept", pieces(INSIDE)),
            "make": lambda: self._nothing(files.make_dir("real/made/below")),
            "remove": lambda: self._nothing(files.remove("real/made", recursive=True)),
            "rename in": self._rename_in,
            "rename out": self._rename_out,
            "archive": lambda: collect(files.read_archive("real")),
            "download": self._download,
        }

    async def run(self, seconds: float) -> None:
        """Make calls until the time is over, four at once."""
        end = time.monotonic() + seconds
        async with anyio.create_task_group() as tasks:
            for start in range(4):
                tasks.start_soon(self._run, start, end)

    async def _run(self, start: int, end: float) -> None:
        names = list(self.actions)
        while time.monotonic() < end:
            start += 1
            name = names[start % len(names)]
            try:
                seen = await self.actions[name]()
            except MEANWHILE:
                self.refused[name] += 1
                continue
            self.done[name] += 1
            if isinstance(seen, bytes) and name in ("read", "stream"):
                assert seen == INSIDE
            if len(self.seen) < 100_000:
                self.seen.append(seen)

    def check_copies(self, canary: Canary) -> None:
        """Fail if anything from outside was copied to the host."""
        for copy in self._host.glob("copy-*/*"):
            if copy.is_file():
                assert canary.word.encode() not in copy.read_bytes()

    async def _page(self) -> bytes:
        return (await self._files.read_page("real/canary")).text.encode()

    async def _rename_in(self) -> None:
        self._number += 1
        await self._files.write(f"spare{self._number % 4}", INSIDE)
        await self._files.rename(f"spare{self._number % 4}", "real/canary")

    async def _rename_out(self) -> bytes:
        self._number += 1
        name = f"taken{self._number}"
        await self._files.rename("real/kept", name)
        content = await self._files.read(name)
        await self._files.remove(name)
        return content

    async def _download(self) -> TreeReport:
        self._number += 1
        target = self._host / f"copy-{self._number}"
        target.mkdir()
        return await self._files.download("real", target)

    async def _nothing(self, work: Awaitable[None]) -> None:
        await work


async def collect(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data
