"""The watchdog: a loop that stands still is seen with its culprit, one that has nothing to do is not."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import anyio
import pytest

from atoll.node import loop_watch
from atoll.node.counters import Counter, Counters
from atoll.node.loop_watch import LoopWatch


def blocks(records: list[logging.LogRecord]) -> list[logging.LogRecord]:
    return [record for record in records if record.getMessage() == "loop.blocked"]


async def until_it_goes_on(watch: LoopWatch) -> None:
    with anyio.fail_after(60):
        while watch.is_blocked:
            await anyio.sleep(0.01)


def culprit_that_sleeps(watch: LoopWatch) -> None:
    time.sleep(1.5)
    # However busy the machine is, the thread gets its turn sooner or later.
    while not watch.is_blocked:
        time.sleep(0.01)


async def test_a_blocked_loop_is_seen_with_its_culprit(caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters()
    with LoopWatch(blocked=counters.loop_blocked.add) as watch:
        await anyio.sleep(0.01)
        culprit_that_sleeps(watch)
        await until_it_goes_on(watch)
    [block] = blocks(caplog.records)
    assert "culprit_that_sleeps" in vars(block)["where"]
    assert vars(block)["seconds"] >= 1
    assert counters.loop_blocked.value() == 1


def slow_text() -> str:
    """Return what one match with `culprit_in_one_call` takes half a second for: twice as much with each letter."""
    for length in range(10, 60):
        begun = time.thread_time()
        culprit_in_one_call("a" * length + "b")
        if time.thread_time() - begun >= 0.5:
            return "a" * length + "b"
    raise AssertionError("no text was slow")


def culprit_in_one_call(text: str) -> None:
    # No other thread gets a turn until it returns.
    re.match(r"(a|aa)+$", text)


@pytest.fixture
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with nothing else to do: for the watch, no time passes while this thread has no processor."""
    own = time.pthread_getcpuclockid(threading.get_ident())
    clock = SimpleNamespace(
        monotonic=lambda: time.clock_gettime(own),
        clock_gettime=time.clock_gettime,
        pthread_getcpuclockid=time.pthread_getcpuclockid,
    )
    monkeypatch.setattr(loop_watch, "time", clock)


async def test_code_that_lets_no_other_thread_run_is_seen(
    caplog: pytest.LogCaptureFixture, no_others: None
) -> None:
    counters, text = Counters(), slow_text()
    with LoopWatch(0.2, blocked=counters.loop_blocked.add) as watch, anyio.fail_after(100):
        while not any("culprit_in_one" in vars(each)["where"] for each in blocks(caplog.records)):
            await anyio.sleep(0.03)
            culprit_in_one_call(text)
        await until_it_goes_on(watch)
    assert counters.loop_blocked.value() >= 1


def block_until_told(counter: Counter) -> None:
    before = counter.value()
    while counter.value() == before:
        time.sleep(0.01)
    time.sleep(0.3)
    assert counter.value() == before + 1


async def test_a_block_is_told_once_however_long_it_takes() -> None:
    counters = Counters()
    with LoopWatch(0.1, blocked=counters.loop_blocked.add) as watch:
        for _ in range(3):
            await until_it_goes_on(watch)
            block_until_told(counters.loop_blocked)


async def test_an_idle_loop_is_never_called_blocked(caplog: pytest.LogCaptureFixture) -> None:
    with LoopWatch(4.0):
        await anyio.sleep(4.6)
    assert blocks(caplog.records) == []


async def test_it_ends_at_once_with_its_owner() -> None:
    with LoopWatch(3600):
        await anyio.sleep(0.01)
    assert "atoll-loop-watch" not in {thread.name for thread in threading.enumerate()}


def test_a_loop_that_was_closed_ends_it() -> None:
    async def enter() -> LoopWatch:
        return LoopWatch(0.01).__enter__()

    watch = asyncio.run(enter())
    watch._thread.join(60)
    assert not watch._thread.is_alive()


def test_a_loop_that_was_closed_while_it_stood_still_ends_it() -> None:
    told = threading.Event()

    async def stand_still() -> LoopWatch:
        watch = LoopWatch(0.01, told.set).__enter__()
        await asyncio.to_thread(lambda: None)
        assert told.wait(60)  # the loop has no turn in which it could answer
        return watch

    loop = asyncio.new_event_loop()
    task = loop.create_task(stand_still())
    while not task.done():
        loop.call_soon(loop.stop)
        loop.run_forever()
    watch = task.result()
    loop.close()
    watch._thread.join(60)
    assert not watch._thread.is_alive()


def test_a_process_that_was_stopped_is_not_blamed_on_the_loop() -> None:
    code = (
        "import asyncio, logging\n"
        "from atoll.node.loop_watch import LoopWatch\n"
        "logging.basicConfig(level='WARNING')\n"
        "async def main():\n"
        "    with LoopWatch(1.0):\n"
        "        print('ready', flush=True)\n"
        "        await asyncio.sleep(2.5)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    process.stdout.readline()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.3)
    os.kill(process.pid, signal.SIGCONT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
