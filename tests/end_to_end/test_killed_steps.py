"""A node that is killed at any of its named steps: the step was hit, and the next node goes on with everything."""

from __future__ import annotations

import base64
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from atoll.client.http import HttpNode
from atoll.errors import AtollError
from tests.campaigns import Campaign
from tests.end_to_end.dying_node import find
from tests.end_to_end.killed_steps import STEPS, Chapter
from tests.end_to_end.left_behind import Traces
from tests.end_to_end.node_load import Load
from tests.host_state import eventually
from tests.running_node import (
    PATIENT,
    RunningNode,
    make_environment,
    running_node,
    start_node,
)

_SECONDS = 120.0
_ORPHAN_SECONDS = 60.0
_STEP_SECONDS = 600.0
_ROOT = Path(__file__).parents[2]
_FEWEST = 5
_LONG = 700_000

_COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.03; done"
_COUNT_IN_CELL = "import time\ni = 0\nwhile True:\n    i += 1\n    print(i)\n    time.sleep(0.03)"
_ECHO = "stty -echo; while read line; do echo got $line; done"
_NEXT = "x = globals().get('x', 0) + 1\nprint(-x)\nx"


def test_every_step_is_a_call_of_the_node() -> None:
    assert len(STEPS) >= 30
    for name, step in STEPS.items():
        assert find(step.target), name


# --- what is there all the time -------------------------------------------------------------------


@dataclass
class Counting:
    """Something that prints 1, 2, 3 … and must go on doing so."""

    execution: str
    start: int = 0
    printed: bytes = b""

    async def check(self, load: Load) -> None:
        """See that it has gone on, and that every number came once."""
        more = len(self.printed) + 20
        with anyio.fail_after(_SECONDS):
            while len(self.printed) < more:
                await load.persist(lambda node: self._read(node, more))
        numbers = [int(line) for line in self.printed.splitlines()[:-1]]
        assert numbers == list(range(1, len(numbers) + 1)), "numbers were lost or repeated"

    async def _read(self, node: HttpNode, more: int) -> None:
        async with aclosing(node.events(self.execution, self.start)) as events:
            async for event in events:
                self.start = event.seq + 1
                self.printed += event.data
                assert not event.value, f"what counted has ended: {event.value}"
                if len(self.printed) >= more:
                    return


@dataclass
class Survivors:
    """Sandboxes that outlive every node: a command, a cell, a terminal, a kernel's state and a file."""

    calm: str
    busy: str
    counting: Sequence[Counting]
    terminal: str
    content: bytes
    cells: int = 0
    lines: int = 0

    @classmethod
    async def settle(cls, load: Load) -> Survivors:
        """Make them."""
        calm, busy = await load.create("python"), await load.create("python")
        command = await load.execute(calm, {"kind": "command", "command": _COUNT})
        cell = await load.execute(busy, {"kind": "cell", "code": _COUNT_IN_CELL})
        terminal = await load.execute(calm, {"kind": "terminal", "command": _ECHO})
        content = secrets.token_bytes(50_000)
        await load.put(f"/sandboxes/{calm}/files/kept", content)
        counting = [Counting(command["id"]), Counting(cell["id"])]
        return cls(calm, busy, counting, terminal["id"], content)

    async def check(self, load: Load) -> None:
        """See that all goes on, and that what was acknowledged is there."""
        for each in self.counting:
            await each.check(load)
        assert await load.get(f"/sandboxes/{self.calm}/files/kept") == self.content
        self.cells += 1
        started = await load.execute(self.calm, {"kind": "cell", "code": _NEXT})
        assert (await load.gather(started["id"]))[2] == str(self.cells), "a kernel lost its state"
        await self._check_terminal(load)

    async def _check_terminal(self, load: Load) -> None:
        self.lines += 1
        path = f"/executions/{self.terminal}/stdin"
        await load.persist(lambda node: node.call("POST", path, data=_once(b"%d\n" % self.lines)))
        wanted = b"".join(b"got %d\r\n" % line for line in range(1, self.lines + 1))
        with anyio.fail_after(_SECONDS):
            printed = await load.persist(lambda node: self._read_terminal(node, len(wanted)))
        assert printed == wanted

    async def _read_terminal(self, node: HttpNode, length: int) -> bytes:
        printed = b""
        async with aclosing(node.events(self.terminal, 0)) as events:
            async for event in events:
                printed += event.data
                if len(printed) >= length:
                    break
        return printed

    async def check_ended(self, load: Load) -> None:
        """See that what was printed until the end can still be read."""
        for each in self.counting:
            printed, _outcome, _result = await load.gather(each.execution)
            assert printed.startswith(each.printed)


async def _once(data: bytes) -> Any:
    yield data


# --- what is going on when the node dies ----------------------------------------------------------


@dataclass
class Tour:
    """One of everything, each under a key of its own, asked for until it is answered."""

    load: Load
    survivors: Survivors
    sandbox: str = ""
    executions: set[str] = field(default_factory=set)
    given_up: list[str] = field(default_factory=list)  # never acknowledged, and said to be lost

    async def run(self) -> None:
        """Do it all, and see that each has its effect once."""
        await self._create()
        await self._upload()
        await self._run_command()
        for count in (1, 2, 3):
            await self._run_cell(count)
        await self._open_terminal()
        await self._check_effects()
        await self._destroy()

    async def _create(self) -> None:
        body = {"kernel": True, "files": {"seed": "coral"}, "command": "echo program"}
        key = {"Idempotency-Key": secrets.token_hex(8)}
        made = await self.load.ask("POST", "/sandboxes", body=body, headers=key)
        self.sandbox = made["id"]
        assert await self.load.get(f"/sandboxes/{self.sandbox}/files/seed") == b"coral"

    async def _upload(self) -> None:
        content = secrets.token_bytes(300_000)
        path = f"/sandboxes/{self.sandbox}/files/folder/content"
        await self.load.put(path, content)
        assert await self.load.get(path) == content

    async def _run_command(self) -> None:
        given = secrets.token_bytes(150_000)
        body = {
            "kind": "command",
            "command": "cat; exit 3",
            "stdin": {"base64": base64.b64encode(given).decode()},
        }
        printed, outcome, _ = await self._carry_out(body)
        assert printed == given, f"{len(printed)} of {len(given)} bytes came through"
        assert outcome["exit_code"] == 3

    async def _run_cell(self, count: int) -> None:
        # The second one is larger than what a socket holds, so the next begins with empty files; that takes long enough to be read.
        rest = {1: "", 2: "\n#" + _LONG * ".", 3: "\nimport time\ntime.sleep(0.2)\nx"}
        code = _NEXT + rest[count]
        printed, outcome, result = await self._carry_out({"kind": "cell", "code": code})
        assert (printed, result) == (f"-{count}\n".encode(), str(count)), outcome

    async def _open_terminal(self) -> None:
        printed, outcome, _ = await self._carry_out({"kind": "terminal", "command": "echo hello"})
        assert (printed, outcome["exit_code"]) == (b"hello\r\n", 0)

    async def _carry_out(self, body: dict[str, Any]) -> tuple[bytes, dict[str, Any], str | None]:
        while True:
            refusals = self.load.findings.refusals
            started = await self.load.execute(self.sandbox, body)
            was_cut_off = self.load.findings.refusals > refusals
            self.executions.add(started["id"])
            printed, outcome, result = await self.load.gather(started["id"])
            if not (was_cut_off and _is_lost(outcome)):
                return printed, outcome, result
            self.given_up.append(f"{body['kind']}: {outcome}")

    async def _check_effects(self) -> None:
        info = await self.load.ask("GET", f"/sandboxes/{self.sandbox}")
        listed = await self.load.ask("GET", f"/sandboxes/{self.sandbox}/executions")
        programs = [each for each in listed if each["id"] not in self.executions]
        assert len(programs) == 1, f"the program ran {len(programs)} times: {info}"
        assert len(listed) == len(self.executions) + 1
        living = await self.load.ask("GET", "/sandboxes", params={"state": "running"})
        mine = {self.sandbox, self.survivors.calm, self.survivors.busy}
        assert {each["id"] for each in living} == mine

    async def _destroy(self) -> None:
        key = {"Idempotency-Key": secrets.token_hex(8)}
        refusals = self.load.findings.refusals
        await self.load.ask("DELETE", f"/sandboxes/{self.sandbox}", headers=key)
        info = await self.load.ask("GET", f"/sandboxes/{self.sandbox}")
        # A node that was killed in between left no word of why it ended.
        is_cut_off = self.load.findings.refusals > refusals
        assert info["status"] in (("destroyed", "lost") if is_cut_off else ("destroyed",)), info


def _is_lost(outcome: dict[str, Any]) -> bool:
    return outcome.get("reason") in ("lost", "not_started") or outcome.get("status") == "died"


# --- a node that dies -----------------------------------------------------------------------------


class DyingNode:
    """A node that kills itself at a step."""

    def __init__(self, data: Path, step: str) -> None:
        self._step = step
        self._witness = data / "killed-at"
        on_exit = "keep" if STEPS[step].chapter is Chapter.KEEPING else "stop"
        settings = {"ATOLL_LOG__FORMAT": "json", "ATOLL_NODE__ON_EXIT": on_exit}
        with (data / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.end_to_end.dying_node", step, str(self._witness)],
                env=make_environment(data, **settings),
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def wait(self, seconds: float = _SECONDS) -> bool:
        """Return whether it has died, and see that it did so at its step."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                return False
            await anyio.sleep(0.01)
        assert self.process.returncode == -signal.SIGKILL, "it ended by itself"
        assert self._witness.read_text() == self._step
        self._witness.unlink()
        return True


@dataclass
class Passage:
    """One data directory, and what happens to its nodes."""

    node: RunningNode
    load: Load
    traces: Traces
    survivors: Survivors
    seconds: list[float] = field(default_factory=list)  # until each node was ready

    async def try_step(self, name: str) -> Sequence[str]:
        """Return what is wrong after a kill at a step."""
        faults: list[str] = []
        tour = Tour(self.load, self.survivors)
        try:
            with anyio.fail_after(_STEP_SECONDS):
                await self._pass_step(name, tour)
                await self._check(STEPS[name].chapter)
        except* (AssertionError, AtollError, TimeoutError) as errors:
            faults = [str(each) or repr(each) for each in _leaves(errors)]
        if faults:
            await self._begin_anew()
        print(f"{name}: {faults or 'passed'}, ready after {self.seconds[-1]:.2f} s {tour.given_up}")
        return faults

    async def _begin_anew(self) -> None:
        """See that other steps do not suffer from this one."""
        if self.node.process.poll() is not None:
            await self._start()
        await self._replace_survivors()

    async def _pass_step(self, name: str, tour: Tour) -> None:
        """Kill a node at a step in the middle of everything, and see that the next one goes on with it."""
        chapter = STEPS[name].chapter
        await self._kill()
        dying = DyingNode(self.node.data, name)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tour.run)
                if chapter in (Chapter.KEEPING, Chapter.STOPPING):
                    await _until_listening(self.load)
                    dying.process.send_signal(signal.SIGTERM)
                assert await dying.wait(), "the step was not hit"
                with anyio.CancelScope(shield=chapter is Chapter.STOPPING):
                    if chapter is Chapter.STOPPING:
                        tasks.cancel_scope.cancel()  # the sandbox that is toured ends with all others
                    await self._start()
        finally:
            if dying.process.poll() is None:
                dying.process.kill()
                dying.process.wait()

    async def _start(self) -> None:
        """Start the next node."""
        begun = time.monotonic()
        node = await anyio.to_thread.run_sync(partial(start_node, self.node.data, **PATIENT))
        self.seconds.append(time.monotonic() - begun)
        self.node.process = node.process

    async def _kill(self) -> None:
        self.node.process.kill()
        await anyio.to_thread.run_sync(self.node.process.wait)

    async def _check(self, chapter: Chapter) -> None:
        """See that nothing was lost, and that nothing is left over."""
        if chapter is Chapter.STOPPING:
            ended = self.survivors
            await self._replace_survivors()
            await ended.check_ended(self.load)
        else:
            await self.survivors.check(self.load)
        living = [self.survivors.calm, self.survivors.busy]
        data = self.node.data
        await _eventually_none(lambda: self.traces.orphans(data, living))

    async def _replace_survivors(self) -> None:
        await self.load.ask("DELETE", "/sandboxes")
        self.survivors = await Survivors.settle(self.load)


async def _until_listening(load: Load) -> None:
    await load.ask("GET", "/health")


async def _eventually_none(left: Any) -> None:
    found = await anyio.to_thread.run_sync(
        lambda: [] if eventually(lambda: not left(), _ORPHAN_SECONDS) else left()
    )
    assert found == [], found


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture
def node(traces: Traces) -> Iterator[RunningNode]:
    with running_node(**PATIENT) as node:
        yield node


def choose(campaign: Campaign) -> Sequence[str]:
    """Return the steps of this run; those that end all sandboxes come last."""
    count = max(_FEWEST, campaign.count(len(STEPS)))
    chosen = campaign.random.sample(sorted(STEPS), min(count, len(STEPS)))
    return sorted(chosen, key=lambda name: STEPS[name].chapter is Chapter.STOPPING)


@pytest.mark.timeout(3600)
async def test_a_node_killed_at_any_step_loses_nothing(
    node: RunningNode, traces: Traces, campaign: Campaign
) -> None:
    load = Load(node.address, campaign.random.randrange(1 << 30))
    passage = Passage(node, load, traces, await Survivors.settle(load))
    results = {name: await passage.try_step(name) for name in choose(campaign)}
    print(
        f"{len(results)} steps, ready again (loaded before) after {max(passage.seconds):.1f} s at most"
    )
    assert {name: found for name, found in results.items() if found} == {}
    node.stop()
    await _eventually_none(lambda: traces.left(node.data))


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each
