"""What the suite's tests share: running something inside, and waiting for what must come soon."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import anyio
import pytest

from atoll.engines.contract import Engine, Feature, Process, Sandbox
from atoll.errors import NotFound, Unsupported
from atoll.model.process import Command, EndReason, Output, ProcessEnd
from atoll.model.sandbox import SandboxSpec

T = TypeVar("T")

# Long enough for a busy machine; whatever hangs, hangs longer.
SOON_SECONDS = 60.0


class MakeEngine(Protocol):
    """Makes a fresh engine whose operator lets in `mountable` directories."""

    def __call__(self, *, mountable: Sequence[Path] = ()) -> Engine: ...


class Conformance:
    """The fixtures of every part of the suite."""

    @pytest.fixture
    async def sandbox(self, engine: Engine) -> AsyncIterator[Sandbox]:
        """A sandbox of its own for each test."""
        sandbox = await engine.create(SandboxSpec())
        try:
            yield sandbox
        finally:
            await sandbox.destroy()


@dataclass(frozen=True)
class Outcome:
    """What came of a process that was read to its end."""

    end: ProcessEnd
    stdout: bytes
    stderr: bytes

    @property
    def code(self) -> int | None:
        """The exit code; None after a signal."""
        return self.end.exit_code


def soon() -> AbstractContextManager[anyio.CancelScope]:
    """Return a scope that gives up on what should not take long."""
    return anyio.fail_after(SOON_SECONDS)


async def run(sandbox: Sandbox, command: Command) -> Outcome:
    """Run a command to its end."""
    with soon():
        process = await sandbox.start(command)
        try:
            return await collect(process)
        finally:
            with anyio.CancelScope(shield=True):
                await process.close()


async def run_argv(sandbox: Sandbox, *argv: str) -> Outcome:
    """Run an argument list to its end."""
    return await run(sandbox, Command(argv))


async def run_line(sandbox: Sandbox, line: str) -> Outcome:
    """Run a shell line to its end."""
    return await run(sandbox, Command(("sh", "-c", line)))


async def collect(process: Process) -> Outcome:
    """Read a process to its end."""
    pieces: list[Output] = [output async for output in process.output()]
    end = await process.wait()
    if end.exit_code is not None:
        assert end.reason is EndReason.EXITED
    streams = {
        name: b"".join(piece.data for piece in pieces if piece.stream == name)
        for name in ("stdout", "stderr")
    }
    return Outcome(end, streams["stdout"], streams["stderr"])


async def read_all(sandbox: Sandbox, path: str) -> bytes:
    """Return a whole file."""
    with soon():
        return b"".join([chunk async for chunk in sandbox.workspace.read(path)])


async def read_line(sandbox: Sandbox, path: str) -> str:
    """Return a file's first line once it is there as a whole."""

    async def found() -> str | None:
        try:
            data = await read_all(sandbox, path)
        except NotFound:
            return None
        return data.decode() if data.endswith(b"\n") else None

    return (await eventually(found)).strip()


async def eventually(look: Callable[[], Awaitable[T | None]]) -> T:
    """Return what `look` finds, as soon as it finds something."""
    with soon():
        while (found := await look()) is None:  # noqa: ASYNC110 - what is inside cannot set an event
            await anyio.sleep(0.02)
    return found


async def is_alive(sandbox: Sandbox, pid: str) -> bool:
    """Whether a process of the sandbox exists, as seen by another one there."""
    return (await run_line(sandbox, f"kill -0 {pid}")).code == 0


async def wait_gone(sandbox: Sandbox, pid: str) -> None:
    """Wait until a process of the sandbox is no more."""

    async def gone() -> bool | None:
        return None if await is_alive(sandbox, pid) else True

    await eventually(gone)


def needs(engine: Engine, feature: Feature) -> None:
    """Skip a test about what the engine need not have and does not have."""
    if feature not in engine.features:
        pytest.skip(f"engine {engine.name} has no {feature}")


async def can_pause(engine: Engine, sandbox: Sandbox) -> bool:
    """Whether sandboxes can be paused here, which the machine decides; where not, pausing says so."""
    if Feature.PAUSE in engine.features:
        return True
    for call in (sandbox.pause, sandbox.resume):
        with pytest.raises(Unsupported):
            await call()
    return False
