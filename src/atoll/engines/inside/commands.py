"""A command as a supervisor reads it."""

from __future__ import annotations

from atoll.engines.inside.wire import RunFlag, RunHeader
from atoll.model.process import Command, TerminalSize


def payload(command: Command, directory: str) -> bytes:
    """Return the command as the supervisor reads it."""
    variables = [f"{name}={value}" for name, value in command.env.items()]
    strings = [directory, *command.argv, *variables]
    text = b"".join(each.encode("utf-8", "surrogateescape") + b"\0" for each in strings)
    size = command.terminal or TerminalSize()
    header = RunHeader(
        flags=RunFlag.TERMINAL if command.terminal else 0,
        arguments=len(command.argv),
        variables=len(variables),
        rows=size.rows,
        columns=size.columns,
        text_bytes=len(text),
    )
    return bytes(header) + text
