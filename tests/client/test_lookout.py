"""Looking out for a server's answer: only where it is likely to come soon, and where nobody else is held up."""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio
import pytest

from atoll.client.lookout import Crowd, Lookout
from atoll_guest import looking


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "LOOKING_SECONDS", 0.0003)
    # On a busy machine everything is slow.
    monkeypatch.setattr(looking, "QUICK_SECONDS", 60.0)


@pytest.fixture
def line() -> Iterator[tuple[int, int]]:
    """Two ends of what may be a connection: the one to read from, and the other."""
    ends = os.pipe2(os.O_NONBLOCK)
    yield ends
    for end in ends:
        os.close(end)


async def brisk(crowd: Crowd) -> Lookout:
    """Return a lookout whose server has just answered at once."""
    lookout = Lookout(crowd)
    with lookout:
        pass
    return lookout


async def look(lookout: Lookout, connection: int) -> bytes:
    with lookout:
        return lookout.read(connection) if await lookout.pays() else b""


async def test_nothing_is_looked_for_before_an_answer_came_quickly(line: tuple[int, int]) -> None:
    lookout = Lookout(Crowd())
    os.write(line[1], b"answer")
    assert await look(lookout, line[0]) == b""
    assert await look(lookout, line[0]) == b"answer"


async def test_one_who_waits_among_others_holds_up_nobody(line: tuple[int, int]) -> None:
    crowd = Crowd()
    lookout = await brisk(crowd)
    os.write(line[1], b"answer")
    with Lookout(crowd):
        assert await look(lookout, line[0]) == b""
    assert crowd.waiting == 0


async def test_two_who_ask_at_the_same_time_both_wait_for_the_loop(line: tuple[int, int]) -> None:
    crowd = Crowd()
    lookouts = [await brisk(crowd), await brisk(crowd)]
    os.write(line[1], b"answer")
    got: list[bytes] = []

    async def read(lookout: Lookout) -> None:
        with lookout:
            got.append(lookout.read(line[0]) if await lookout.pays() else b"")
            await anyio.sleep(0.01)  # the loop is waited for

    async with anyio.create_task_group() as tasks:
        for each in lookouts:
            tasks.start_soon(read, each)
    assert got == [b"", b""]
    assert crowd.waiting == 0


async def test_what_others_have_to_do_comes_first(line: tuple[int, int]) -> None:
    lookout = await brisk(Crowd())

    async def answer() -> None:
        os.write(line[1], b"answer")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        assert await look(lookout, line[0]) == b"answer"


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_connection_that_gives_nothing_is_left_to_the_loop(is_closed: bool) -> None:
    crowd = Crowd()
    lookout = await brisk(crowd)
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    os.close(write_end)
    if is_closed:
        os.close(read_end)
    assert await look(lookout, read_end) == b""
    assert crowd.waiting == 0
    if not is_closed:
        os.close(read_end)
