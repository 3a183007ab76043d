# Generated from _async by tools/generate_sync.py; edit that.
"""Commands in a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing

from atoll.client._sync.processes import Process
from atoll.client.calls import TextCallback, TextSplitter
from atoll.client.errands import look, take
from atoll.client.face import SandboxFace, Way
from atoll.errors import Unavailable
from atoll.model.ids import ProcessId
from atoll.model.process import CommandResult, Output


class Commands:
    """Runs commands in one sandbox."""

    def __init__(self, open_: Callable[[], tuple[Way, SandboxFace]]) -> None:
        self._open = open_

    def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        envs: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        check: bool = False,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
    ) -> CommandResult:
        """Run a shell line, or an argument list without a shell, to its end.

        A non-zero exit and a timeout are results; with `check` they raise `CommandFailed`. Of each stream the
        first 1 MiB is kept; the callbacks get all of it, as it comes.
        """
        splitter = TextSplitter(on_stdout, on_stderr)
        if splitter.is_wanted:
            result = self._report(command, splitter, cwd, envs, stdin, timeout)
            return result.check() if check else result
        way, hosted = self._open()
        return way.call(
            hosted.commands.run,
            command,
            cwd=cwd,
            env=envs,
            stdin=stdin,
            timeout=timeout,
            check=check,
        )

    def stream(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        envs: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
    ) -> Generator[Output | CommandResult, None]:
        """Yield what a command prints as it comes, and last its result, as `run` returns it.

        Leaving the loop early and closing the generator kills the command.
        """
        way, hosted = self._open()
        events = way.call(
            look,
            hosted.commands.stream,
            command,
            cwd=cwd,
            env=envs,
            stdin=stdin,
            timeout=timeout,
        )
        try:
            while (event := way.call(take, events)) is not None:
                yield event
        finally:
            way.call(events.aclose)

    def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        envs: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        keep_stdin: bool = False,
    ) -> Process:
        """Start a command and return a handle at once.

        With `keep_stdin` its standard input stays open for `write`; otherwise it holds `stdin` and then ends.
        """
        way, hosted = self._open()
        background = way.call(
            hosted.commands.start, command, cwd=cwd, env=envs, stdin=stdin, keep_stdin=keep_stdin
        )
        return Process(way, background)

    def list(self) -> Sequence[Process]:
        """Return the started commands, oldest first; some of them may have ended."""
        way, hosted = self._open()
        found = way.call(look, hosted.commands.list)
        return [Process(way, background) for background in found]

    def connect(self, process_id: str) -> Process:
        """Return the handle of a started command, or raise `NotFound`."""
        way, hosted = self._open()
        found = way.call(look, hosted.commands.find, ProcessId(process_id))
        return Process(way, found)

    def _report(
        self,
        command: str | Sequence[str],
        splitter: TextSplitter,
        cwd: str,
        envs: Mapping[str, str] | None,
        stdin: bytes | str | None,
        timeout: float | None,
    ) -> CommandResult:
        """Run a command and hand on what it prints, here and not in the node's thread."""
        running = self.stream(command, cwd=cwd, envs=envs, stdin=stdin, timeout=timeout)
        with closing(running) as events:
            for event in events:
                if isinstance(event, CommandResult):
                    return event
                splitter(event)
        raise Unavailable("the command ended without a result; try again")
