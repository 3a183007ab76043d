"""What a process printed is kept for those who come late and held back for those who are slow."""

from __future__ import annotations

import anyio
import pytest

from atoll.model.process import Output
from atoll.node.output_log import OutputLog, OutputReader
from atoll.testing.conformance.running import soon

pytestmark = pytest.mark.any_user


def piece(text: str) -> Output:
    return Output("stdout", text.encode(), 0.0)


async def read_all(reader: OutputReader) -> str:
    text = ""
    while (output := await reader.read()) is not None:
        text += output.data.decode()
    return text


async def test_who_comes_late_gets_the_last_of_it() -> None:
    log = OutputLog(6)
    for text in ("one", "two", "three"):
        await log.add(piece(text))
    reader = log.open()
    await log.add(piece("4"))
    log.end()
    assert await read_all(reader) == "three4"
    assert await read_all(log.open()) == "three4"


async def test_who_reads_along_misses_nothing_however_slow() -> None:
    log = OutputLog(10)
    reader = log.open()
    expected = "".join(f"{number}," for number in range(100))

    async def write() -> None:
        for number in range(100):
            await log.add(piece(f"{number},"))
        log.end()

    with soon():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await anyio.wait_all_tasks_blocked()
            assert await read_all(reader) == expected


@pytest.mark.parametrize("how", ["close", "release"])
async def test_a_reader_that_has_stopped_holds_nobody_back_once_it_is(how: str) -> None:
    log = OutputLog(3)
    reader = log.open()
    written = anyio.Event()

    async def write() -> None:
        for _ in range(10):
            await log.add(piece("abc"))
        written.set()

    with soon():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await anyio.wait_all_tasks_blocked()
            assert not written.is_set()
            if how == "close":
                await reader.close()
                await reader.close()
            else:
                log.release()
            await written.wait()


async def test_a_piece_larger_than_the_log_passes_whole() -> None:
    log = OutputLog(3)
    reader = log.open()

    async def write() -> None:
        await log.add(piece("much longer"))
        await log.add(piece("than that"))
        log.end()

    with soon():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            assert await read_all(reader) == "much longerthan that"
