"""Commands in a sandbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from atoll.client.embedded import AsyncNode, HostedSandbox
from atoll.model.process import CommandResult


class AsyncCommands:
    """Runs commands in one sandbox."""

    def __init__(self, open_: Callable[[], Awaitable[tuple[AsyncNode, HostedSandbox]]]) -> None:
        self._open = open_

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        envs: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Run a shell line, or an argument list without a shell, to its end.

        A non-zero exit and a timeout are results; with `check` they raise `CommandFailed`.
        """
        node, hosted = await self._open()
        return await node.call(
            hosted.commands.run,
            command,
            cwd=cwd,
            env=envs,
            stdin=stdin,
            timeout=timeout,
            check=check,
        )
