"""What a process prints goes into its own log, and nothing that is somebody else's."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import cast

import anyio
import pytest

from atoll.engines.contract import Process
from atoll.errors import Unsupported
from atoll.model.process import EndReason, Output, ProcessEnd, Stream
from atoll.node.output_pump import OutputPump
from atoll.testing.conformance.running import soon
from tests.node.logs import create_log

pytestmark = pytest.mark.any_user


class ClosedAtAnyMoment:
    """A process as a sandbox leaves it that is destroyed: its descriptors are closed while somebody still reads."""

    def __init__(self) -> None:
        self.source, self.program = os.pipe()
        os.set_blocking(self.source, False)
        self.ended = anyio.Event()

    def descriptors(self) -> Mapping[Stream, int]:
        return {"stdout": self.source}

    async def wait(self) -> ProcessEnd:
        await self.ended.wait()
        return ProcessEnd(None, 9, EndReason.KILLED)

    def destroy(self) -> None:
        os.close(self.source)
        os.close(self.program)
        self.ended.set()


class Telling:
    """A process of an engine without descriptors: what it prints comes as messages."""

    def descriptors(self) -> Mapping[Stream, int]:
        raise Unsupported("there are none")

    async def output(self) -> AsyncGenerator[Output, None]:
        for stream, data in (("stdout", b"one "), ("stderr", b"bad"), ("stdout", b"two\xff")):
            yield Output(cast(Stream, stream), data, 0.0)

    async def wait(self) -> ProcessEnd:
        return ProcessEnd(3, None, EndReason.EXITED)


async def test_what_comes_as_messages_is_written_as_it_is(tmp_path: Path) -> None:
    log = create_log(tmp_path / "log")
    end = await OutputPump(cast(Process, Telling()), log, {}).run()
    log.end({})
    assert end.exit_code == 3
    assert log.head("stdout", 100) == b"one two\xff"
    assert log.head("stderr", 100) == b"bad"


async def test_a_number_that_became_somebody_elses_is_not_read(tmp_path: Path) -> None:
    process, log = ClosedAtAnyMoment(), create_log(tmp_path / "log")
    pump = OutputPump(cast(Process, process), log, {})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pump.run)
        os.write(process.program, b"mine")
        with soon():
            while log.length("stdout") < 4:
                await anyio.sleep(0.001)
        number = process.source
        process.destroy()
        others, writer = os.pipe()
        if others != number:
            os.dup2(others, number, inheritable=False)
        os.write(writer, b"somebody else's")
    log.end({})
    assert log.head("stdout", 100) == b"mine"
    assert os.read(number, 100) == b"somebody else's"
    for fd in {number, others, writer}:
        os.close(fd)
