"""A node without descriptors, without processes, or with a disk that fails: clear refusals, and all goes on afterwards."""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from atoll.client.http import HttpNode
from atoll.errors import AtollError, LimitExceeded, Unavailable
from tests import preloaded
from tests.campaigns import Campaign
from tests.end_to_end.faults import Faults
from tests.end_to_end.test_full_disks import check_unharmed
from tests.running_node import RunningNode, prepare_data, running_node, start_node

_PIDS = Path("/sys/fs/cgroup/pids")
_CELL = {"kind": "cell", "wait": True}


async def test_without_descriptors_a_node_refuses_and_heals(campaign: Campaign) -> None:
    with running_node() as node:
        async with node.client() as client:
            work = await Work.begin(client)
            refused = turned_away = 0
            for _ in range(campaign.count(100)):
                with few_descriptors(node, campaign.random.randrange(12)):
                    refused += await work.count_refusals()
                    turned_away += await count_turned_away(node)
                await work.check_goes_on()
            assert refused
            assert turned_away
            counted = (await client.ask("GET", "/metrics")).text
        check_told(node, counted)


@contextmanager
def few_descriptors(node: RunningNode, left: int) -> Iterator[None]:
    """Leave a node so many descriptors."""
    pid = node.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # What counts is the highest number, below which some may be free.
    highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + left, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def count_turned_away(node: RunningNode) -> int:
    """Connect more often than the node can take; return how many were turned away, each with the reason."""
    refusals: list[Unavailable] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask_for_health, node, refusals)
    assert all("descriptor" in each.message for each in refusals), refusals
    return len(refusals)


async def ask_for_health(node: RunningNode, refusals: list[Unavailable]) -> None:
    async with node.client() as client:
        try:
            await client.call("GET", "/health")
        except Unavailable as error:
            refusals.append(error)


@pytest.mark.root_only
@pytest.mark.skipif(not _PIDS.is_dir(), reason="there is no pids hierarchy of cgroups here")
async def test_without_processes_a_node_refuses_and_heals(campaign: Campaign) -> None:
    with few_processes() as limit, running_node() as node:
        limit.leave_alone()
        async with node.client() as client:
            # Whoever is refused a kernel cannot tell whose limit that was: the sandbox's has the same error.
            work = await Work.begin(client, (Unavailable, LimitExceeded))
            refused = 0
            for _ in range(campaign.count(100)):
                limit.set(limit.used + campaign.random.randrange(4))
                refused += await work.count_refusals()
                limit.set(None)
                await work.check_goes_on()
            assert refused
            counted = (await client.ask("GET", "/metrics")).text
        check_told(node, counted)


class ProcessLimit:
    """A cgroup that limits the number of processes in it."""

    def __init__(self, group: Path) -> None:
        self._group = group

    @property
    def used(self) -> int:
        return int((self._group / "pids.current").read_text())

    def set(self, most: int | None) -> None:
        (self._group / "pids.max").write_text("max" if most is None else str(most))

    def take_in(self) -> None:
        """Have all that these tests start from now on be in it."""
        self._move(self._group)

    def leave_alone(self) -> None:
        """Have nothing more that these tests start be in it."""
        self._move(self._group.parent)

    def _move(self, group: Path) -> None:
        for pid in (os.getpid(), *preloaded.helpers()):
            (group / "cgroup.procs").write_text(str(pid))


@contextmanager
def few_processes() -> Iterator[ProcessLimit]:
    """Begin with this process in a limited cgroup, so that what it starts is there."""
    group = _PIDS / f"test-{secrets.token_hex(6)}"
    group.mkdir()
    limit = ProcessLimit(group)
    limit.take_in()
    try:
        yield limit
    finally:
        limit.set(None)
        limit.leave_alone()
        group.rmdir()


@pytest.mark.timeout(1800)
async def test_a_disk_that_fails_loses_nothing(tmp_path: Path, campaign: Campaign) -> None:
    data = Path(tempfile.mkdtemp(prefix="atoll-node-"))
    faults = Faults(tmp_path, data)
    try:
        prepare_data(data)
        node = start_node(data, **faults.settings)
        try:
            async with node.client() as client:
                work = await Work.begin(client)
                rounds, wanted = 0, campaign.count(200)
                while faults.failed < wanted or rounds < 3:
                    faults.fail_one_in(campaign.random.choice([1, 2, 5]))
                    await work.count_refusals()
                    faults.fail_one_in(0)
                    await work.check_goes_on()
                    rounds += 1
                counted = (await client.ask("GET", "/metrics")).text
                print(f"{faults.failed} writes failed in {rounds} rounds")
            check_told(node, counted)
        finally:
            faults.fail_one_in(0)
            node.stop()
        await check_unharmed(data)
    finally:
        shutil.rmtree(data, ignore_errors=True)


class Work:
    """What is asked of a node, and what it has acknowledged."""

    def __init__(
        self, client: HttpNode, sandbox: str, refusals: tuple[type[AtollError], ...]
    ) -> None:
        self._client = client
        self._refusals = refusals
        self._path = f"/sandboxes/{sandbox}"
        self._ran: list[str] = []
        self._count = 0

    @classmethod
    async def begin(
        cls, client: HttpNode, refusals: tuple[type[AtollError], ...] = (Unavailable,)
    ) -> Work:
        made = await client.call("POST", "/sandboxes", body={"template": "python"})
        work = cls(client, made["id"], refusals)
        await work._put("kept", b"as it was")
        await work.check_goes_on()
        return work

    async def count_refusals(self) -> int:
        """Ask for everything; return how much was refused, in the right way."""
        return sum([await self._try(each) for each in self._asks()])

    def _asks(self) -> list[Callable[[], Awaitable[Any]]]:
        call, path = self._client.call, self._path
        return [
            self._create,
            self._start,
            lambda: call("POST", f"{path}/executions", body={"kind": "terminal"}),
            lambda: call("POST", f"{path}/kernels", body={}),
            lambda: self._put("other", b"x" * 1000),
            lambda: self._client.ask("GET", f"{path}/files/kept"),
            lambda: call("GET", "/sandboxes"),
            lambda: call("GET", path),
        ]

    async def _try(self, ask: Callable[[], Awaitable[Any]]) -> int:
        try:
            with anyio.fail_after(60):
                await ask()
        except AtollError as error:
            assert isinstance(error, self._refusals), error
            return 1
        return 0

    async def _create(self) -> None:
        made = await self._client.call("POST", "/sandboxes", body={"template": "base"})
        await self._client.call("DELETE", f"/sandboxes/{made['id']}")

    async def _start(self) -> None:
        body = {"kind": "command", "command": "seq 1 2000"}
        started = await self._client.call("POST", f"{self._path}/executions", body=body)
        self._ran.append(started["id"])

    async def _put(self, name: str, data: bytes) -> None:
        await self._client.call("PUT", f"{self._path}/files/{name}", data=_once(data))

    async def check_goes_on(self) -> None:
        """All works, the kernel has its variables, files are as they were, and no output is missing."""
        call = self._client.call
        self._count += 1
        code = f"x = globals().get('x', 0) + 1\nx - {self._count}"
        answer = await call("POST", f"{self._path}/executions", body={**_CELL, "code": code})
        assert answer["outcome"]["status"] == "ok", answer
        assert "'text/plain': '0'" in str(answer["results"])
        kept = await self._client.ask("GET", f"{self._path}/files/kept")
        assert kept.content == b"as it was"
        await self._create()
        for execution in self._ran:
            await self._check_whole(execution)
        self._ran.clear()

    async def _check_whole(self, execution: str) -> None:
        """A command that was acknowledged has printed all, or it is said that it was lost."""
        events = [event async for event in self._client.events(execution)]
        printed = b"".join(event.data for event in events)
        if events[-1].value["reason"] == "exited":
            assert printed == b"".join(b"%d\n" % number for number in range(1, 2001))
        else:
            assert events[-1].value["reason"] in ("killed", "lost", "signalled"), events[-1]


async def _once(data: bytes) -> Any:
    yield data


def check_told(node: RunningNode, counted: str) -> None:
    """There is an event for what was refused, it is counted, and nothing was unexpected."""
    events = [each["event"] for each in node.events()]
    assert "request.failed" not in events
    assert "requests.refused" in events
    assert 'atoll_reports_total{event="requests.refused"}' in counted
