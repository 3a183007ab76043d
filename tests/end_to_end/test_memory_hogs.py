"""Sandboxes that want more memory than there is: they lose, and nobody else does."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.from_thread
import pytest

from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.engines.namespaces.sandbox import NamespaceSandbox
from atoll.errors import Conflict, Unavailable
from atoll.model.limits import Limits
from atoll.model.process import EndReason
from atoll.model.sandbox import SandboxRequest, SandboxSpec, SandboxState
from atoll.model.sizes import GIB, MIB
from atoll.node.home import Home
from atoll.node.node import Node
from atoll.node.records import MemoryRecords
from atoll.node.residents import Resident
from atoll.node.templates import Templates
from tests import host_state
from tests.campaigns import Campaign
from tests.host_state import name_of

pytestmark = pytest.mark.cgroups

_KEPT = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
_WORKERS = 20
# What all sandboxes may have together, unless it is the machine's own memory.
_SMALL_BYTES = GIB
_HOG_SECONDS = 60.0
# One that is refused tries again for a while.
_TRIES, _TRY_SECONDS = 10, 0.2


@asynccontextmanager
async def open_node(memory_bytes: int | None = None) -> AsyncIterator[Node]:
    """A node in this process, whose sandboxes together may have so much memory."""
    trees = {"python": Templates(_KEPT).python}
    engine = NamespaceEngine(NamespaceSettings(_KEPT, trees=trees, memory_bytes=memory_bytes))
    wake = asyncio.get_running_loop().call_soon_threadsafe
    async with anyio.create_task_group() as tasks:
        node = Node(engine, MemoryRecords(), Home(tasks, wake, anyio.from_thread.run))
        tasks.start_soon(node.run)
        try:
            yield node
        finally:
            await node.close()
            await engine.close()
            tasks.cancel_scope.cancel()


async def make(node: Node, *, python: bool = False, limits: Limits | None = None) -> Resident:
    spec = SandboxSpec(
        template="python" if python else "base", kernel=python, limits=limits or Limits()
    )
    return await node.create(SandboxRequest(spec))


@dataclass
class Workers:
    """Sandboxes with live kernels that compute all the while, and whether what they say is right."""

    residents: Sequence[Resident]
    cells: int = 0
    faults: list[str] = field(default_factory=list)
    over: anyio.Event = field(default_factory=anyio.Event)

    async def work(self, resident: Resident) -> None:
        kernel = await resident.hosted.find_kernel()
        await kernel.run("total = 0\nblock = bytearray(1 << 20)")
        expected, rounds = 0, 0
        while not self.over.is_set():
            rounds += 1
            expected += sum(range(rounds))
            cell = await kernel.run(f"total += sum(range({rounds}))\n(total, sum(block))")
            if cell.text != f"({expected}, 0)":
                self.faults.append(f"{resident.id}: {cell.text} and {cell.error} in round {rounds}")
                return
            self.cells += 1
            await anyio.sleep(0.05)


@asynccontextmanager
async def working(node: Node) -> AsyncIterator[Workers]:
    """Have sandboxes work meanwhile, and see at the end that none was disturbed."""
    workers = Workers([await make(node, python=True) for _ in range(_WORKERS)])
    async with anyio.create_task_group() as tasks:
        for resident in workers.residents:
            tasks.start_soon(workers.work, resident)
        yield workers
        await anyio.sleep(0.2)
        workers.over.set()
    assert workers.faults == []
    assert workers.cells > _WORKERS
    for resident in workers.residents:
        assert resident.info.state is SandboxState.RUNNING


# --- one sandbox at its own limit -------------------------------------------------------------


@pytest.mark.timeout(1200)
async def test_a_sandbox_out_of_memory_says_so_and_goes_on_beside_others(
    campaign: Campaign,
) -> None:
    async with open_node() as node, working(node) as workers:
        for _ in range(campaign.count(200)):
            hog = await make(node, limits=Limits(memory_bytes=64 * MIB))
            result = await hog.hosted.commands.run("head -c 200M /dev/zero | tail")
            assert result.reason is EndReason.OUT_OF_MEMORY, result
            again = await hog.hosted.commands.run("echo alive")
            assert again.stdout == b"alive\n"
            await node.end(hog, "asked")
        print(f"{workers.cells} cells meanwhile")


# --- all together -----------------------------------------------------------------------------


async def hoard_in_a_program(resident: Resident, size: int) -> str:
    """Have a live kernel hold so many bytes; return how that ended."""
    cell = await (await resident.hosted.find_kernel()).run(f"block = b'x' * {size}")
    return "out_of_memory" if "memory" in cell.death else cell.death or cell.status.value


async def hoard_in_files(resident: Resident, size: int) -> str:
    """Have files hold so many bytes, which no program's size shows; return how that ended."""
    command = (
        f"head -c {2 * size // 3} /dev/zero > big && head -c {size // 3} /dev/zero > /tmp/small"
    )
    result = await resident.hosted.commands.run(command)
    return "ok" if result.ok else result.reason.value


Hoard = Callable[[Resident, int], Awaitable[str]]


@dataclass
class Feast:
    """Hogs that want three times as much as all may have together, and what became of them."""

    node: Node
    hoard: Hoard
    ends: Counter[str] = field(default_factory=Counter)
    sated: anyio.Event = field(default_factory=anyio.Event)

    async def hold(self, total_bytes: int, size: int) -> None:
        """Let hogs in, one after another; each keeps what it has got until no other is left to come."""
        count = 3 * total_bytes // size
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(self._come, size, count)
                await anyio.sleep(0.05)

    async def _come(self, size: int, count: int) -> None:
        resident = await self._enter()
        end = "refused" if resident is None else await self._eat(resident, size)
        self.ends[end] += 1
        if self.ends.total() == count:
            self.sated.set()
        await self.sated.wait()
        if resident is not None:
            await self.node.end(resident, "asked")

    async def _enter(self) -> Resident | None:
        for _ in range(_TRIES):
            try:
                return await make(self.node, python=self.hoard is hoard_in_a_program)
            except Unavailable as error:
                assert error.retryable
                assert "try again" in error.message
            await anyio.sleep(_TRY_SECONDS)
        return None

    async def _eat(self, resident: Resident, size: int) -> str:
        try:
            with anyio.fail_after(_HOG_SECONDS):
                return await self.hoard(resident, size)
        except Conflict as error:
            # Ended by then, because it had the most of all.
            assert resident.hosted.info.state is SandboxState.LOST, error
            return "lost"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("hoard", [hoard_in_a_program, hoard_in_files])
async def test_hogs_that_want_more_than_there_is_harm_nobody_else(
    campaign: Campaign, hoard: Hoard
) -> None:
    cap, size = _SMALL_BYTES, 240 * MIB
    if campaign.long:
        cap, size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 720 * MIB
    with no_kill_of_the_host() as kills:
        async with open_node(None if campaign.long else cap) as node, working(node) as workers:
            check_who_would_go_first()
            feast = Feast(node, hoard)
            await feast.hold(cap, size)
            print(f"{dict(feast.ends)}, {workers.cells} cells meanwhile")
            assert set(feast.ends) <= {"ok", "out_of_memory", "lost", "refused"}
            # Some had to give way, but the first of them fitted in.
            assert feast.ends["ok"] < feast.ends.total()
    assert kills == []


@pytest.mark.timeout(1200)
async def test_where_the_kernel_comes_first_it_takes_who_has_the_most(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As if others kept the node from its processor whenever it should act.
    monkeypatch.setattr(NamespaceSandbox, "end_for_memory", lambda _sandbox: None)
    async with open_node(_SMALL_BYTES) as node, working(node):
        feast = Feast(node, hoard_in_files)
        await feast.hold(_SMALL_BYTES, 240 * MIB)
    lost = [vars(each)["reason"] for each in caplog.records if each.message == "sandbox.lost"]
    print(f"{dict(feast.ends)}, {len(lost)} lost")
    assert set(lost) == {"it had the most when all sandboxes together ran out of memory"}


def check_who_would_go_first() -> None:
    """See that the kernel would end any sandbox before this program, which is the node."""
    inits = [pid for pid in host_state.descendants(os.getpid()) if name_of(pid) == "init"]
    assert inits
    assert _score(os.getpid()) < min(map(_score, inits))


def _score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score").read_text())


@contextmanager
def no_kill_of_the_host() -> Iterator[list[str]]:
    """Give the kernel's words about kills that were not at a cgroup's limit, as far as its log can be read."""
    kills: list[str] = []
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield kills
        return
    try:
        os.lseek(log, 0, os.SEEK_END)
        yield kills
        with suppress(BlockingIOError):
            while True:
                with suppress(BrokenPipeError):  # older lines were overwritten
                    line = os.read(log, 8192).decode(errors="replace")
                    # At a cgroup's limit it says: Memory cgroup out of memory.
                    kills += [line] if "Out of memory:" in line else []
    finally:
        os.close(log)


async def test_what_does_not_fit_is_refused_for_the_moment_and_the_pool_goes_first() -> None:
    async with open_node(_SMALL_BYTES) as node:
        await node.pool.keep(SandboxSpec(), 3)
        hog = await make(node, limits=Limits(memory_bytes=2 * GIB, workspace_bytes=900 * MIB))
        assert (await hog.hosted.commands.run("head -c 800M /dev/zero > big")).ok
        with pytest.raises(Unavailable, match="try again") as refusal:
            await make(node)
        assert refusal.value.retryable
        await eventually(lambda: not node.pool.ready())
        assert hog.info.state is SandboxState.RUNNING
        await node.end(hog, "asked")
        await node.end(await make(node, python=True), "asked")
        await eventually(lambda: len(node.pool.ready()) == 3)


async def eventually(true: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not true():
            await anyio.sleep(0.02)
