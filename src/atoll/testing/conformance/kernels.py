"""Programs that become kernels: they speak with the host over their standard input."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from atoll.engines.contract import Engine, Feature, KernelProcess, Sandbox
from atoll.errors import Unsupported
from atoll.model.process import Command, EndReason
from atoll.testing.conformance.running import Conformance, collect, soon

# Says back what it hears, and prints that it did.
_ECHO = 'while read -r line; do echo "heard $line" >&0; echo printed; echo complained >&2; done'


class KernelConformance(Conformance):
    """Starting kernels that are no forks."""

    async def test_a_kernel_hears_and_speaks_over_its_standard_input(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        if not await _has_kernels(engine, sandbox):
            return
        async with _kernel(sandbox, _ECHO) as kernel:
            for number in range(3):
                kernel.channel.sendall(b"%d\n" % number)
                assert await _receive(kernel, 8) == b"heard %d\n" % number
            kernel.channel.shutdown(socket.SHUT_WR)
            outcome = await collect(kernel)
        assert (outcome.code, outcome.stdout, outcome.stderr) == (
            0,
            b"printed\n" * 3,
            b"complained\n" * 3,
        )

    async def test_a_kernel_is_interrupted_and_killed_as_commands_are(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        if not await _has_kernels(engine, sandbox):
            return
        line = "trap 'echo interrupted >&0' INT; echo ready >&0; while :; do sleep 0.1; done"
        async with _kernel(sandbox, line) as kernel:
            assert await _receive(kernel, 6) == b"ready\n"
            assert kernel.end is None
            await kernel.signal(signal.SIGINT)
            assert await _receive(kernel, 12) == b"interrupted\n"
            await kernel.kill()
            assert (await kernel.wait()).reason is EndReason.KILLED

    async def test_a_kernel_whose_program_is_missing_ends_with_127(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        if not await _has_kernels(engine, sandbox):
            return
        kernel = await sandbox.start_kernel(Command(("no-such-program",)))
        assert kernel.end is not None
        assert kernel.end.exit_code == 127
        await kernel.close()

    async def test_the_channel_of_a_kernel_ends_with_its_sandbox(
        self, engine: Engine, sandbox: Sandbox
    ) -> None:
        if not await _has_kernels(engine, sandbox):
            return
        async with _kernel(sandbox, _ECHO) as kernel:
            with kernel.hold():
                await sandbox.destroy()
                assert kernel.channel.recv(1) == b""


async def _has_kernels(engine: Engine, sandbox: Sandbox) -> bool:
    """Whether programs can become kernels here; where not, starting one says so."""
    if Feature.KERNELS in engine.features:
        return True
    with pytest.raises(Unsupported):
        await sandbox.start_kernel(Command(("sh",)))
    return False


@asynccontextmanager
async def _kernel(sandbox: Sandbox, line: str) -> AsyncIterator[KernelProcess]:
    kernel = await sandbox.start_kernel(Command(("sh", "-c", line)))
    try:
        yield kernel
    finally:
        await kernel.close()


async def _receive(kernel: KernelProcess, count: int) -> bytes:
    heard = b""
    with soon():
        while len(heard) < count:
            await anyio.wait_readable(kernel.channel)
            heard += kernel.channel.recv(count - len(heard))
    return heard
