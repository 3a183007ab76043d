"""Turns are taken by threads and by tasks of several event loops, one at a time and in order."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from atoll.node.turns import Turns

pytestmark = pytest.mark.any_user


def test_threads_and_event_loops_never_have_it_at_once() -> None:
    turns, inside, most, done = Turns(), 0, 0, 0

    def enter() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)

    def leave() -> None:
        nonlocal inside, done
        inside -= 1
        done += 1

    def work_here() -> None:
        for _ in range(50):
            with turns:
                enter()
                time.sleep(0.0001)
                leave()

    async def work_there() -> None:
        for _ in range(50):
            async with turns:
                enter()
                await asyncio.sleep(0.0001)
                leave()

    with ThreadPoolExecutor(6) as workers:
        works = [workers.submit(work_here) for _ in range(3)]
        works += [workers.submit(lambda: asyncio.run(work_there())) for _ in range(3)]
        for each in works:
            each.result(60)
    assert (most, done, turns.is_taken) == (1, 300, False)


async def test_whoever_gives_up_waiting_is_passed_over() -> None:
    turns, order = Turns(), []

    async def work(name: str) -> None:
        async with turns:
            order.append(name)

    async with anyio.create_task_group() as tasks, turns:
        tasks.start_soon(work, "first")
        await anyio.sleep(0.01)
        with anyio.move_on_after(0.01):
            await work("gives up")
        tasks.start_soon(work, "last")
        await anyio.sleep(0.01)
    assert order == ["first", "last"]
    assert not turns.is_taken


def test_an_error_inside_passes_the_turn_on() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="oops"), turns:
        raise ValueError("oops")
    taken = threading.Event()

    def take() -> None:
        with turns:
            taken.set()

    threading.Thread(target=take).start()
    assert taken.wait(60)
