"""A steward that somebody inside has taken over: whatever it says, the host stays bounded and its calls end."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import tracemalloc
from struct import Struct

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.engines.inside.wire import FilesReply
from atoll.engines.steward.outlet import CREDIT, Outlet
from atoll.engines.steward.sandbox import StewardSandbox
from atoll.engines.steward.wire import (
    MAX_FRAME,
    STEWARD_VERSION,
    Channel,
    HelloHead,
    ListedFile,
    ProcessEnding,
    Word,
)
from atoll.errors import AtollError, LimitExceeded, Unavailable
from atoll.model.limits import LimitsInfo
from atoll.model.process import Command, ProcessEnd
from atoll.model.sandbox import SandboxSpec, SandboxState

pytestmark = pytest.mark.any_user

HEAD = Struct("=IIBBH")
HELLO = bytes(HelloHead(version=STEWARD_VERSION)) + b"atoll\0kernel\0Uid:\t0\0mounts\0"


def frame(word: int, number: int = 0, channel: int = 0, data: bytes = b"") -> bytes:
    return HEAD.pack(len(data), number, word, channel, 0) + data


class Puppet:
    """A transport on whose other end a test sits."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[bytes] = asyncio.Queue()
        self.heard = b""
        self.is_deaf = False

    def say(self, data: bytes) -> None:
        self._said.put_nowait(data)

    async def receive(self) -> bytes:
        return await self._said.get()

    async def send(self, data: bytes) -> None:
        if self.is_deaf:
            await anyio.sleep_forever()
        self.heard += data

    async def close(self) -> None:
        pass


class NoWall:
    """Nothing round it."""

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def stop(self) -> None: ...

    async def remove(self) -> None: ...

    def explain(self, end: ProcessEnd) -> ProcessEnd:
        return end


async def open_sandbox(puppet: Puppet, greeting: bytes = HELLO) -> StewardSandbox:
    spec = SandboxSpec()
    puppet.say(frame(Word.HELLO, data=greeting))
    return await StewardSandbox.open(
        spec,
        LimitsInfo(spec.resolve_limits(), {}),
        engine="puppet",
        transport=puppet,
        wall=NoWall(),
        can_pause=False,
        forget=lambda _id: None,
    )


GREETINGS = [
    b"",
    b"x",
    HELLO[:10],
    bytes(HelloHead(version=STEWARD_VERSION + 1)) + b"a\0b\0c\0d\0",
    bytes(HelloHead(version=STEWARD_VERSION)) + b"no ends",
    bytes(HelloHead(version=STEWARD_VERSION, marking=-1)) + b"a\0b\0c\0d\0",
]


@pytest.mark.parametrize("greeting", GREETINGS, ids=range(len(GREETINGS)))
async def test_a_first_word_that_makes_no_sense_is_refused(greeting: bytes) -> None:
    with pytest.raises(Unavailable):
        await open_sandbox(Puppet(), greeting)


# What no steward says: to nobody in particular, or about the first object, which is a process that is being started.
NONSENSE = {
    "an unknown word": frame(99, 1),
    "an unknown channel": frame(Word.DATA, 1, 7, b"x"),
    "a frame without an end": HEAD.pack(MAX_FRAME + 1, 1, Word.DATA, 1, 0),
    "more than there is credit for": frame(Word.DATA, 1, Channel.OUTPUT, bytes(CREDIT + 1)),
    "data without end that is none": frame(Word.DATA, 1, Channel.OUTPUT),
    "a channel that it does not have": frame(Word.DATA, 1, Channel.TALK, b"x"),
    "a start that is cut off": frame(Word.STARTED, 1, 0, b"abc"),
    "an end that is cut off": frame(Word.ENDED, 1, 0, b"abc"),
    "a port that it is not": frame(Word.ACCEPTED, 1, 0, bytes(8)),
    "credit that is no number": frame(Word.CREDIT, 1, 0, bytes(100)),
    "more to come than there can be": frame(Word.STARTED, 1, 0, bytes(8))
    + frame(Word.ENDED, 1, 0, bytes(ProcessEnding(status=0, output_bytes=(1 << 60, 0)))),
    "the end of it all": b"",
}


@pytest.mark.parametrize("said", NONSENSE.values(), ids=NONSENSE)
async def test_nonsense_ends_the_sandbox_and_all_calls(said: bytes) -> None:
    puppet = Puppet()
    sandbox = await open_sandbox(puppet)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect_error, sandbox)
            await anyio.sleep(0.01)
            puppet.say(said)
        await sandbox.wait_ended()
    assert sandbox.info.state is SandboxState.LOST
    assert sandbox.info.reason
    await sandbox.destroy()


async def _expect_error(sandbox: StewardSandbox) -> None:
    with pytest.raises(AtollError):
        process = await sandbox.start(Command(("true",)))
        async for _ in process.output():
            pass
        raise sandbox.ended_error()


def test_what_waits_in_tiny_pieces_takes_no_more_room_than_its_bytes() -> None:
    outlet = Outlet(lambda _bytes: None)
    tracemalloc.start()
    assert all(outlet.put(bytes([each % 256]), 0.0) for each in range(CREDIT))
    held, _most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2 * CREDIT
    taken = b"".join(iter(lambda: (outlet.take() or (b"", 0.0))[0], b""))
    assert taken == bytes(range(256)) * (CREDIT // 256)


async def test_a_file_is_never_longer_than_it_was_said_to_be() -> None:
    puppet = Puppet()
    sandbox = await open_sandbox(puppet)
    said = frame(Word.DATA, 1, Channel.OUTPUT, bytes(FilesReply(size=10)) + b"x" * 30_000)
    # Once it was asked for.
    asyncio.get_running_loop().call_later(0.2, puppet.say, said)
    read = b"".join([piece async for piece in sandbox.workspace.read("file")])
    assert read == b"x" * 10
    await sandbox.destroy()


async def test_a_directory_that_repeats_itself_ends() -> None:
    puppet = Puppet()
    sandbox = await open_sandbox(puppet)
    entry = bytes(ListedFile(name_bytes=1)) + b"a"
    said = frame(Word.DATA, 1, Channel.OUTPUT, bytes(FilesReply()) + entry * 1000)
    # Once it was asked for.
    asyncio.get_running_loop().call_later(0.2, puppet.say, said)
    with pytest.raises(LimitExceeded):
        await sandbox.workspace.list(limit=100)
    await sandbox.destroy()


async def test_a_steward_that_takes_nothing_ends_its_sandbox() -> None:
    puppet = Puppet()
    sandbox = await open_sandbox(puppet)
    puppet.is_deaf = True
    with anyio.fail_after(60), pytest.raises(AtollError):
        for _ in range(100):
            with anyio.move_on_after(0.01):
                await sandbox.start(Command(("echo", *["x" * 100_000] * 13)))
    assert sandbox.info.state is SandboxState.LOST
    await sandbox.destroy()


words = st.builds(
    frame,
    st.sampled_from([*Word]) | st.integers(0, 255),
    st.integers(0, 6) | st.integers(1 << 31, (1 << 31) + 3) | st.integers(0, (1 << 32) - 1),
    st.integers(0, 4),
    st.binary(max_size=64) | st.integers(0, 3).map(lambda each: ctypes.c_int32(each)).map(bytes),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(said=st.lists(words | st.binary(max_size=40), max_size=30))
def test_whatever_is_said_calls_end(said: list[bytes]) -> None:
    asyncio.run(_listen_to(said))


async def _listen_to(said: list[bytes]) -> None:
    puppet = Puppet()
    sandbox = await open_sandbox(puppet)
    opened: list[socket.socket] = []
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for work in (_start, _list, _kernel, _connect, _listen):
                tasks.start_soon(work, sandbox, opened)
            await anyio.lowlevel.checkpoint()
            for each in said:
                puppet.say(each)
            # What went well so far may wait for more, which never comes.
            puppet.say(b"")
        await sandbox.destroy()
    for stream in opened:
        stream.close()
    assert sandbox.info.state is SandboxState.DESTROYED


async def _start(sandbox: StewardSandbox, _opened: list[socket.socket]) -> None:
    try:
        process = await sandbox.start(Command(("true",), stdin=True))
        async for _ in process.output():
            pass
        await process.wait()
        await process.close()
    except AtollError:
        pass


async def _list(sandbox: StewardSandbox, _opened: list[socket.socket]) -> None:
    try:
        await sandbox.workspace.list()
    except AtollError:
        pass


async def _kernel(sandbox: StewardSandbox, _opened: list[socket.socket]) -> None:
    try:
        kernel = await sandbox.start_kernel(Command(("true",)))
        await kernel.wait()
        await kernel.close()
    except AtollError:
        pass


async def _connect(sandbox: StewardSandbox, opened: list[socket.socket]) -> None:
    try:
        opened.append(await sandbox.connect(8000))
    except AtollError:
        pass


async def _listen(sandbox: StewardSandbox, opened: list[socket.socket]) -> None:
    try:
        opened.append(await sandbox.listen(8000))
    except AtollError:
        pass
