"""Terminals over any engine's process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Self

import anyio

from atoll.engines.contract import Process, Sandbox
from atoll.model.ids import ProcessId
from atoll.model.process import Command, ProcessEnd, TerminalSize

# Prefers bash where the sandbox has it, as `Command.shell` does.
_SHELL = "command -v bash > /dev/null && exec bash -i; exec sh -i"
_TERM = "xterm-256color"


class Terminals:
    """Opens terminals in one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def open(
        self,
        command: str | Sequence[str] | None = None,
        *,
        size: TerminalSize | None = None,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Terminal:
        """Start a shell, a shell line or an argument list on a terminal of its own.

        Raises:
            Unsupported: the engine has no terminals.
            InvalidRequest, LimitExceeded: as `Sandbox.start`.
        """
        wanted = terminal_command(command, size=size, cwd=cwd, env=env, user=user)
        return Terminal(await self._sandbox.start(wanted))


class Terminal:
    """An interactive process with a screen size; leaving its context ends it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def id(self) -> ProcessId:
        """The id of its process."""
        return self._process.id

    async def read(self) -> AsyncGenerator[bytes, None]:
        """Yield what appears on the screen; may be read once, ends with the process."""
        async for output in self._process.output():
            yield output.data

    async def write(self, data: bytes) -> None:
        """Type; raises `Conflict` once the process has ended."""
        await self._process.write(data)

    async def resize(self, size: TerminalSize) -> None:
        """Change the size; the process is told."""
        await self._process.resize(size)

    async def wait(self) -> ProcessEnd:
        """Return how the process ended."""
        return await self._process.wait()

    async def close(self) -> None:
        """End everything that runs on it; safe to call twice."""
        with anyio.CancelScope(shield=True):
            await self._process.kill()
            await self._process.close()


def terminal_command(
    command: str | Sequence[str] | None,
    *,
    size: TerminalSize | None = None,
    cwd: str = ".",
    env: Mapping[str, str] | None = None,
    user: str | None = None,
) -> Command:
    """Return the command for a shell, a shell line or an argument list on a terminal."""
    variables = {"TERM": _TERM, **(env or {})}
    return Command(
        _argv(command),
        cwd=cwd,
        env=variables,
        user=user,
        stdin=True,
        terminal=size or TerminalSize(),
    )


def _argv(command: str | Sequence[str] | None) -> Sequence[str]:
    if command is None:
        return ("/bin/sh", "-c", _SHELL)
    return Command.shell(command).argv if isinstance(command, str) else command
