"""Cells over HTTP: how long they may take, how much of a flood is kept, and a notebook of them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import nbformat
import pytest

from atoll.client.http import HttpNode
from atoll.errors import InvalidRequest
from atoll.model.execution import EventType, ExecutionEvent
from atoll.model.ids import ExecutionId
from tests.campaigns import Campaign
from tests.running_node import RunningNode, running_node, start_node

MIB = 1 << 20


async def _run(client: HttpNode, sandbox: str, code: str, **options: Any) -> dict[str, Any]:
    body = {"kind": "cell", "code": code, "wait": True, **options}
    done: dict[str, Any] = await client.call("POST", f"/sandboxes/{sandbox}/executions", body=body)
    return done


async def test_a_cell_ends_at_the_usual_time_and_may_ask_for_less_or_some_more() -> None:
    settings = {
        "ATOLL_EXECUTION__CELL_TIMEOUT_SECONDS": "1s",
        "ATOLL_EXECUTION__MOST_CELL_TIMEOUT_SECONDS": "30s",
        "ATOLL_EXECUTION__MOST_TIMEOUT_SECONDS": "2s",
    }
    with running_node(**settings) as node:
        async with node.client() as client:
            made = await client.call("POST", "/sandboxes", body={})
            sleep = "import time\ntime.sleep(60)"
            done = await _run(client, made["id"], sleep)
            assert done["outcome"]["status"] == "timed_out"
            assert done["outcome"]["duration"] > 0.9
            assert await _told_timeout(client, done) == 1
            done = await _run(client, made["id"], sleep, timeout=0.2)
            assert done["outcome"]["status"] == "timed_out"
            assert await _told_timeout(client, done) == 0.2
            done = await _run(client, made["id"], "import time\ntime.sleep(1.5)\n'x'", timeout=30)
            assert done["outcome"]["status"] == "ok"
            with pytest.raises(
                InvalidRequest, match=r"most here is 30 s.*most_cell_timeout_seconds"
            ):
                await _run(client, made["id"], "1", timeout=30.5)
            # Commands have limits of their own.
            command = {"command": "true", "timeout": 2.5}
            with pytest.raises(InvalidRequest, match=r"most here is 2 s.*most_timeout_seconds"):
                await client.call("POST", f"/sandboxes/{made['id']}/executions", body=command)


async def _told_timeout(client: HttpNode, done: Mapping[str, Any]) -> float:
    """Return what the node tells of how long a cell might take; how long it took depends on the machine, too."""
    shown: dict[str, Any] = await client.call("GET", f"/executions/{done['id']}")
    seconds: float = shown["what"]["timeout"]
    return seconds


async def test_without_settings_a_cell_may_take_five_minutes_at_most(client: HttpNode) -> None:
    sandbox = (await client.call("POST", "/sandboxes", body={}))["id"]
    done = await _run(client, sandbox, "1", timeout=300)
    assert done["outcome"]["status"] == "ok"
    with pytest.raises(InvalidRequest, match="most here is 300 s"):
        await _run(client, sandbox, "1", timeout=301)
    shown = await client.call("GET", f"/executions/{done['id']}")
    assert shown["what"]["timeout"] == 300
    usual = await _run(client, sandbox, "1")
    assert (await client.call("GET", f"/executions/{usual['id']}"))["what"]["timeout"] == 30
    await client.call("DELETE", f"/sandboxes/{sandbox}")


async def test_what_a_cell_gave_is_told_alike_wherever_it_is_kept() -> None:
    # A little is kept in the record; what is more, or takes longer, in files.
    little = "import sys\nprint('a' * 10)\nsys.stderr.buffer.write(b'\\xff')\n7"
    slow = f"import time\ntime.sleep(0.3)\n{little}"
    much = little.replace("* 10", "* 20_000")
    with running_node() as node:
        async with node.client() as client:
            sandbox = (await client.call("POST", "/sandboxes", body={}))["id"]
            await _run(client, sandbox, slow)
            done, grew = {}, {}
            # Where the machine is busy, one that is quick may take as long as a slow one.
            for code in (slow, much, *[little] * 50):
                before = _written(node)
                done[code] = await _run(client, sandbox, code)
                grew[code] = _written(node) > before
                if not grew[code]:
                    break
            assert grew == {slow: True, much: True, little: False}
            told = {each["id"]: await _events(client, each["id"]) for each in done.values()}
        assert {len(done[code]["stdout"]) for code in (little, slow)} == {11}
        assert len(done[much]["stdout"]) == 20_001
        for each in done.values():
            assert each["results"][0]["value"]["data"] == {"text/plain": "7"}
            kinds = [event.type for event in told[each["id"]]]
            assert (kinds[-1], kinds.count(EventType.RESULT)) == (EventType.END, 1)
        assert node.stop() == 0
        again = start_node(node.data)
        try:
            async with again.client() as client:
                for execution, events in told.items():
                    assert await _events(client, execution) == events
                    assert await _events(client, execution, 2) == events[2:]
        finally:
            again.stop()


async def _events(client: HttpNode, execution: str, start: int = 0) -> list[ExecutionEvent]:
    return [event async for event in client.events(ExecutionId(execution), start)]


def _written(node: RunningNode) -> int:
    return sum(file.stat().st_size for file in (node.data / "executions").rglob("*"))


async def test_a_cell_tells_which_files_it_changed(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={"files": {"kept": "a"}})
    done = await _run(client, made["id"], "open('new', 'w').close()", track_files=True)
    assert done["outcome"]["files_changed"] == ["new"]
    assert "files_changed" not in (await _run(client, made["id"], "1"))["outcome"]
    with pytest.raises(InvalidRequest, match="only a cell takes track_files"):
        body = {"command": "true", "track_files": True}
        await client.call("POST", f"/sandboxes/{made['id']}/executions", body=body)
    await client.call("DELETE", f"/sandboxes/{made['id']}")


async def test_a_flood_fills_neither_memory_nor_disk(campaign: Campaign) -> None:
    mib = max(400, campaign.count(2048))
    with running_node(ATOLL_EXECUTION__LOG_BYTES=str(8 * MIB)) as node:
        async with node.client() as client:
            made = await client.call("POST", "/sandboxes", body={})
            await _run(client, made["id"], "1")
            before, disk = _memory(node), _disk(node)
            code = f"for _ in range({mib}): print('x' * {MIB - 1})\nimport sys\nsys.stderr.write('end')\n7"
            done = await _run(client, made["id"], code, timeout=110)
            assert done["outcome"]["status"] == "ok"
            assert (len(done["stdout"]), done["stderr"]) == (MIB, "end")
            assert "stdout" in done["truncated"]
            assert done["results"][0]["value"]["data"]["text/plain"] == "7"
            assert _memory(node) - before < 64 * MIB
            assert _disk(node) - disk < 4 * 8 * MIB
            # Nothing of it is left for the next one.
            after = await _run(client, made["id"], "print('next')")
            assert after["stdout"] == "next\n"


@pytest.mark.long
async def test_a_cell_that_displays_without_end_costs_its_kernel_and_nothing_else() -> None:
    with running_node() as node:
        async with node.client() as client:
            made = await client.call("POST", "/sandboxes", body={})
            await _run(client, made["id"], "1")
            before, disk = _memory(node), _disk(node)
            code = "while True: display({'image/png': 'x' * 4_000_000}, raw=True)"
            done = await _run(client, made["id"], code, timeout=100)
            assert done["outcome"]["status"] == "died"
            assert "displayed more than 512 MiB" in done["outcome"]["reason"]
            assert _memory(node) - before < 256 * MIB
            assert _disk(node) - disk < 800 * MIB
            after = await _run(client, made["id"], "print('next')")
            assert after["stdout"] == "next\n"


async def test_the_cells_of_a_sandbox_are_a_notebook(client: HttpNode) -> None:
    made = await client.call("POST", "/sandboxes", body={})
    path = f"/sandboxes/{made['id']}/notebook"
    long = "x = 0\n" + "x += 1\n" * 1000 + "x"
    for code in ("print('out')\n[1, 2]", long, "display('shown')\n1 / 0", "echo $((6 * 7))"):
        language = {"language": "bash"} if "echo" in code else {}
        await _run(client, made["id"], code, **language)
    await client.call("POST", f"/sandboxes/{made['id']}/executions", body={"command": "true"})
    living = await _notebook(client, path)
    await client.call("DELETE", f"/sandboxes/{made['id']}")
    assert await _notebook(client, path) == living
    first, second, third, fourth = living["cells"]
    assert [each["output_type"] for each in first["outputs"]] == ["stream", "execute_result"]
    assert (second["source"], second["outputs"][0]["data"]) == (long, {"text/plain": "1000"})
    assert [each["output_type"] for each in third["outputs"]] == ["display_data", "error"]
    assert third["execution_count"] == 3
    assert fourth["metadata"] == {"atoll": {"language": "bash"}}
    assert fourth["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "42\n"}]


async def _notebook(client: HttpNode, path: str) -> dict[str, Any]:
    notebook: dict[str, Any] = await client.call("GET", path)
    nbformat.validate(notebook)
    return notebook


def _memory(node: RunningNode) -> int:
    """Return the most memory that the node has had."""
    with open(f"/proc/{node.process.pid}/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _disk(node: RunningNode) -> int:
    folders = (node.data / "kernels", node.data / "executions")
    files = (file for folder in folders for file in folder.rglob("*"))
    return sum(file.lstat().st_blocks * 512 for file in files)
