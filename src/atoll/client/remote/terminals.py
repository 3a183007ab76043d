"""Terminals in a sandbox on a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import anyio

from atoll.client.remote.executions import RemoteExecution
from atoll.client.remote.transport import Server
from atoll.client.remote.values import to_end
from atoll.client.remote.wishes import make_command
from atoll.errors import Conflict, Unavailable
from atoll.model.execution import EventType
from atoll.model.ids import ProcessId
from atoll.model.process import ProcessEnd, TerminalSize


class RemoteTerminals:
    """Opens terminals in one sandbox."""

    def __init__(self, server: Server, sandbox_id: str) -> None:
        self._server = server
        self._sandbox_id = sandbox_id

    async def open(
        self,
        command: str | Sequence[str] | None = None,
        *,
        size: TerminalSize | None = None,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
    ) -> RemoteTerminal:
        """Start a shell, a shell line or an argument list on a terminal of its own."""
        chosen = size or TerminalSize()
        wish = {
            "kind": "terminal",
            "cwd": cwd,
            "env": dict(env or {}),
            "size": {"rows": chosen.rows, "columns": chosen.columns},
        }
        if command is not None:
            make_command(command, cwd, env)
            wish["command" if isinstance(command, str) else "argv"] = (
                command if isinstance(command, str) else list(command)
            )
        execution = RemoteExecution(self._server, self._sandbox_id, wish)
        try:
            await execution.start()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await execution.cancel()
            raise
        return RemoteTerminal(execution)


class RemoteTerminal:
    """An interactive process."""

    def __init__(self, execution: RemoteExecution) -> None:
        self._execution = execution
        self.id = ProcessId(execution.id or "")

    async def read(self) -> AsyncGenerator[bytes, None]:
        """Yield what appears on the screen; ends with the process."""
        async with aclosing(self._another().follow()) as events:
            async for event in events:
                if event.type.is_output:
                    yield event.data

    async def write(self, data: bytes) -> None:
        """Type; raises `Conflict` once the process has ended."""
        await self._execution.write(data)

    async def resize(self, size: TerminalSize) -> None:
        """Change the size; the process is told."""
        body = {"rows": size.rows, "columns": size.columns}
        if not await self._execution.tell("resize", body):
            raise Conflict(f"terminal {self.id} has ended")

    async def wait(self) -> ProcessEnd:
        """Return how the process ended."""
        async with aclosing(self._another().follow()) as events:
            async for event in events:
                if event.type is EventType.END:
                    return to_end(event.value)
        raise Unavailable("the terminal ended without a result; try again")

    async def close(self) -> None:
        """End everything that runs on it; safe to call twice."""
        with anyio.CancelScope(shield=True):
            await self._execution.cancel()

    def _another(self) -> RemoteExecution:
        execution = self._execution
        return RemoteExecution(execution.server, execution.sandbox_id, {}, execution.id)
