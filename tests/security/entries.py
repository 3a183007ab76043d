"""Every way by which a program gets into a sandbox; an attack has to fail through each of them."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType

import anyio

from atoll.engines.contract import Sandbox
from atoll.model.kernel import CellStatus
from atoll.model.process import CommandResult
from atoll.model.sandbox import SandboxSpec
from atoll.model.template import PYTHON_TEMPLATE
from atoll.node.commands import Commands
from atoll.node.kernels import Kernel
from atoll.node.terminals import Terminals

# Runs an argument list and returns what it printed.
Entry = Callable[[Sandbox, Sequence[str]], Awaitable[bytes]]

_SECONDS = 60.0
_MOST_OUTPUT = 8 << 20


async def by_argv(sandbox: Sandbox, argv: Sequence[str]) -> bytes:
    """A command by its argument list."""
    commands = Commands(sandbox)
    return _printed(await commands.run(argv, timeout=_SECONDS, max_output_bytes=_MOST_OUTPUT))


async def by_shell(sandbox: Sandbox, argv: Sequence[str]) -> bytes:
    """A shell line."""
    commands = Commands(sandbox)
    line = shlex.join(argv)
    return _printed(await commands.run(line, timeout=_SECONDS, max_output_bytes=_MOST_OUTPUT))


async def by_stream(sandbox: Sandbox, argv: Sequence[str]) -> bytes:
    """A command whose output is read as it comes."""
    async with Commands(sandbox) as commands:
        stream = commands.stream(argv, timeout=_SECONDS, max_output_bytes=_MOST_OUTPUT)
        *_outputs, result = [each async for each in stream]
    assert isinstance(result, CommandResult)
    return _printed(result)


async def in_background(sandbox: Sandbox, argv: Sequence[str]) -> bytes:
    """A command that is started and left alone."""
    async with Commands(sandbox) as commands:
        process = await commands.start(argv)
        end = await process.wait(_SECONDS)
        assert end is not None, "still runs"
        assert process.dropped_bytes() == 0
        return process.logs() + process.logs("stderr")


async def on_terminal(sandbox: Sandbox, argv: Sequence[str]) -> bytes:
    """A program on a terminal of its own."""
    screen = b""
    async with await Terminals(sandbox).open(argv) as terminal:
        with anyio.fail_after(_SECONDS):
            async for data in terminal.read():
                screen += data
    return screen.replace(b"\r\n", b"\n")


async def in_cell(sandbox: Sandbox, argv: Sequence[str]) -> bytes:
    """Code in a kernel: a Python module right there, anything else as its child."""
    kernel = await Kernel.open(sandbox)
    try:
        cell = await kernel.run(
            _CELL.format(argv=list(argv)), timeout=_SECONDS, max_output_bytes=_MOST_OUTPUT
        )
    finally:
        await kernel.close()
    assert cell.status is not CellStatus.TIMED_OUT, f"still ran after {_SECONDS:g} s"
    return (cell.stdout + cell.stderr).encode()


_CELL = """
import runpy, subprocess, sys
argv = {argv!r}
if argv[:3] == ["python3", "-B", "-m"]:
    sys.path.insert(0, "/workspace")
    sys.argv = argv[3:]
    runpy.run_module(argv[3], run_name="__main__")
else:
    done = subprocess.run(argv, capture_output=True, text=True)
    print(done.stdout + done.stderr)
"""


def _printed(result: CommandResult) -> bytes:
    assert not result.timed_out, f"still ran after {_SECONDS:g} s"
    return result.stdout + result.stderr


ENTRIES: Mapping[str, Entry] = MappingProxyType(
    {
        "argv": by_argv,
        "shell": by_shell,
        "stream": by_stream,
        "background": in_background,
        "terminal": on_terminal,
        "cell": in_cell,
        "first cell": in_cell,
    }
)


def spec_for(entry: str) -> SandboxSpec:
    """Return a sandbox that has this entry: its first kernel is born with it, others join later."""
    if "cell" not in entry:
        return SandboxSpec()
    return SandboxSpec(template=PYTHON_TEMPLATE, kernel=entry == "first cell")
