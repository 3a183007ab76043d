"""In a guest: a served node is killed, and the next one goes on with all that the kernel holds to limits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import anyio
import pytest

from atoll import Sandbox
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.errors import Conflict
from atoll.model.process import EndReason
from atoll.model.sandbox import SandboxSpec, SandboxState
from atoll.model.sizes import MIB
from atoll.node.commands import Commands
from tests import host_state
from tests.end_to_end.left_behind import Traces
from tests.engines.namespaces.keepers import keeper_of
from tests.preloaded import ENTER_CGROUP
from tests.running_node import RunningNode, running_node, start_node

TOP = Path("/sys/fs/cgroup")
# Made by a user's systemd, which gives each of his programs a cgroup of its own there.
SCOPES = os.environ.get("SCOPES")
LIMITS = {"memory": "64m", "processes": 16, "cpus": 0.5}
COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"
SECONDS = 100.0

_scopes = count(1)


def settings(lease_seconds: float = 600.0) -> dict[str, str]:
    """Return the settings of a node, which has a cgroup of its own where users have such."""
    chosen = {"ATOLL_NODE__LEASE_SECONDS": str(lease_seconds)}
    if SCOPES is None:
        return chosen
    # As `systemd-run --user --scope` does it.
    scope = Path(SCOPES, f"run-{next(_scopes)}.scope")
    scope.mkdir()
    return {**chosen, ENTER_CGROUP: str(scope / "cgroup.procs")}


def kill(node: RunningNode) -> None:
    node.process.kill()
    node.process.wait()


def kill_and_start(node: RunningNode) -> None:
    kill(node)
    node.process = start_node(node.data, **settings()).process


def remove_empty_scopes() -> None:
    """Do as systemd does, when the last process of a scope has ended."""
    for scope in sorted(Path(SCOPES or os.devnull).glob("*.scope")):
        for path in sorted(scope.glob("**/"), reverse=True):
            with suppress(OSError):
                path.rmdir()


def wait_for(is_so: Callable[[], object]) -> None:
    assert host_state.eventually(lambda: bool(is_so()), SECONDS)


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[RunningNode]:
    with running_node(**settings(*getattr(request, "param", ()))) as node:
        yield node


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """See that neither process nor cgroup nor mount is there that was not there before."""
    traces = Traces()
    before, mounts = directories(), host_state.host_mounts()
    yield
    wait_for(lambda: not traces.left(Path("/nowhere")))
    remove_empty_scopes()
    assert (directories() - before, host_state.host_mounts()) == (set(), mounts)


def directories() -> set[Path]:
    """Return every cgroup of the machine."""
    return {Path(path) for path, _folders, _files in os.walk(TOP)}


def cgroup_of(sandbox: Sandbox) -> Path:
    """Return its directory."""
    (found,) = (path for path in directories() if path.name == sandbox.id)
    return found


def is_held(sandbox: Sandbox) -> None:
    """See that its memory and processes are held, and that it is told which of both was too much."""
    assert sandbox.info().limits.enforced_by["memory_bytes"] == "cgroup"
    assert (cgroup_of(sandbox) / "memory.max").read_text() == f"{64 * MIB}\n"
    assert (cgroup_of(sandbox) / "cpu.max").read_text() == "50000 100000\n"
    hungry = sandbox.commands.run("head -c 200000000 /dev/zero | tail", timeout=SECONDS)
    assert hungry.reason == "out_of_memory", hungry
    many = ["sh", "-c", "for each in $(seq 100); do sleep 1000 & done"]
    assert sandbox.commands.run(many, timeout=SECONDS).reason == "too_many_processes"
    assert sandbox.commands.run("echo alive").stdout == b"alive\n"


def test_the_next_node_goes_on_with_everything(nothing_left: None, node: RunningNode) -> None:
    held = Sandbox.create(template="base", limits=LIMITS, url=node.address)
    terminal = held.terminals.open("stty -echo; while read line; do echo got $line; done")
    session = Sandbox.create(url=node.address)
    assert session.run_code("x = 41").ok
    counter = session.commands.start(COUNT)
    paused = Sandbox.create(template="base", url=node.address)
    paused.commands.start(COUNT)
    paused.pause()
    assert (cgroup_of(paused) / "cgroup.freeze").read_text() == "1\n"

    kill_and_start(node)

    assert {info.state for info in Sandbox.list(url=node.address)} == {
        SandboxState.RUNNING,
        SandboxState.PAUSED,
    }
    assert session.run_code("x + 1").text == "42"
    assert_counts(counter.output())
    terminal.write("this\n")
    assert b"got this" in next(part for part in terminal.output() if b"got" in part)
    counter.kill()
    terminal.close()
    is_held(held)
    assert paused.info().state is SandboxState.PAUSED
    paused.resume()
    assert paused.commands.run("echo alive").stdout == b"alive\n"
    held.pause()
    assert (cgroup_of(held) / "cgroup.events").read_text().endswith("frozen 1\n")
    for each in (held, paused, session):
        place = cgroup_of(each)
        each.destroy()
        assert not place.exists()


def assert_counts(output: Iterator[object]) -> None:
    """See that a counter left out no number, and none came twice."""
    seen = b""
    for part in output:
        seen += getattr(part, "data", b"")
        if seen.count(b"\n") > 100:
            break
    numbers = [int(line) for line in seen.splitlines()[:-1]]
    assert numbers == list(range(1, len(numbers) + 1))


def test_with_the_keeper_all_end_and_the_next_one_is_held(
    nothing_left: None, node: RunningNode
) -> None:
    sandbox = Sandbox.create(template="base", limits=LIMITS, url=node.address)
    place = cgroup_of(sandbox)
    # By now its cgroup is one that this node did not choose.
    kill_and_start(node)
    os.kill(keeper_of(node.data), signal.SIGKILL)
    wait_for(lambda: not Sandbox.list(url=node.address))
    with pytest.raises(Conflict, match="its keeper was killed"):
        sandbox.info()
    wait_for(lambda: not place.exists())
    remove_empty_scopes()
    is_held(Sandbox.create(template="base", limits=LIMITS, url=node.address))


@pytest.mark.parametrize("node", [(1.0,)], indirect=True)
def test_when_no_node_comes_back_all_end(nothing_left: None, node: RunningNode) -> None:
    sandbox = Sandbox.create(template="base", limits=LIMITS, url=node.address)
    sandbox.commands.start(COUNT)
    sandbox.pause()
    place = cgroup_of(sandbox)
    kill(node)
    wait_for(lambda: not place.parent.exists())


async def test_all_together_are_held(tmp_path: Path) -> None:
    together = 160 * MIB
    guarded = NamespaceEngine(NamespaceSettings(tmp_path, memory_bytes=together))
    try:
        small, large = [await guarded.create(SandboxSpec()) for _ in range(2)]
        (tree,) = {path.parent for path in host_state.cgroup_directories(small.id)}
        assert (tree / "memory.max").read_text() == f"{together}\n"
        await Commands(small).run("head -c 20M /dev/zero >kept", timeout=SECONDS)
        result = await Commands(large).run("head -c 150M /dev/zero >kept", timeout=SECONDS)
        assert result.reason is EndReason.OUT_OF_MEMORY
        with anyio.fail_after(SECONDS):
            await large.wait_ended()
        assert large.info.state is SandboxState.LOST
        assert large.info.reason == "it had the most when all sandboxes together ran out of memory"
        assert (await Commands(small).run("wc -c <kept")).stdout == b"20971520\n"
    finally:
        await guarded.close()
