"""What `atoll repl` does: cells from a person or a pipe, run one after the other in one live session."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from atoll import AsyncSandbox
from atoll.cli.messages import notice
from atoll.cli.options import Wish
from atoll.cli.repl_cells import CellSplitter
from atoll.cli.repl_pictures import Pictures
from atoll.cli.repl_screen import Screen, kept_terminal
from atoll.cli.sandboxes import open_live_sandbox, run_until_stopped
from atoll.cli.streams import STDIN, STDOUT, read_stdin
from atoll.client.embedded import close_nodes
from atoll.client.places import data_directory
from atoll.errors import Conflict
from atoll.model.kernel import Cell
from atoll.model.sandbox import SandboxState

if TYPE_CHECKING:
    from atoll.cli.repl_prompt import Prompt

_WELCOME = "{} in a sandbox of its own: Ctrl-C interrupts, Ctrl-D leaves{}."
_NAMES = {"deno": "Deno", "julia": "Julia", "node": "Node", "r": "R"}
_FAREWELLS = frozenset({"exit", "exit()", "quit", "quit()", ".exit", "q()"})
# How often one has to press Ctrl-C until a cell that does not heed it loses its session.
_PATIENCE = 3


def run_session(wish: Wish, language: str) -> int:
    """Run cells in a fresh sandbox until the person leaves or the pipe ends."""
    is_terminal = os.isatty(STDIN) and os.isatty(STDOUT)
    try:
        return run_until_stopped(partial(_talk if is_terminal else _run_pipe, wish, language))
    finally:
        close_nodes()


async def _talk(wish: Wish, language: str) -> int:
    # Loaded here: a pipe needs no line editor.
    from atoll.cli.repl_prompt import Prompt

    async with open_live_sandbox(wish, language) as sandbox:
        explains = ", 'name?' explains" if language == "python" else ""
        print(_WELCOME.format(_NAMES.get(language, language.capitalize()), explains))
        prompt = Prompt(sandbox, _history(language), language)
        screen = Screen(is_terminal=True, pictures=Pictures(os.environ))
        session = Session(sandbox, screen, language, prompt)
        with kept_terminal(), anyio.open_signal_receiver(signal.SIGINT) as presses:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.attend_interrupts, presses)
                await _read_and_run(session, prompt)
                tasks.cancel_scope.cancel()
    return 0


def _history(language: str) -> Path:
    suffix = "" if language == "python" else f"_{language}"
    return data_directory() / f"repl_history{suffix}"


async def _read_and_run(session: Session, prompt: Prompt) -> None:
    while (code := await prompt.read(session.number)) is not None:
        if code.strip() in _FAREWELLS:
            return
        if code.strip():
            await session.run(code)


async def _run_pipe(wish: Wish, language: str) -> int:
    splitter = CellSplitter(language)
    async with open_live_sandbox(wish, language) as sandbox:
        session = Session(sandbox, Screen(is_terminal=False), language)
        async for line in _read_lines():
            for cell in splitter.feed(line):
                await session.run(cell)
        for cell in splitter.finish():
            await session.run(cell)
    return 0


async def _read_lines() -> AsyncIterator[str]:
    rest = b""
    async for data in read_stdin():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").removesuffix("\r")
    if rest:
        yield rest.decode("utf-8", "replace")


class Session:
    """One live interpreter, and the number of the cell that comes next."""

    def __init__(
        self, sandbox: AsyncSandbox, screen: Screen, language: str, prompt: Prompt | None = None
    ) -> None:
        self._sandbox = sandbox
        self._language = language
        self._screen = screen
        self._prompt = prompt
        self._running = False
        self._presses = 0
        self.number = 1

    async def run(self, code: str) -> None:
        """Run a cell and show what it gives while it runs."""
        self._running, self._presses = True, 0
        try:
            cell = await self._execute(code)
        except Conflict as error:
            # The session may have ended while the cell waited for it; without a sandbox there is no going on.
            if (await self._sandbox.info()).state is not SandboxState.RUNNING:
                raise
            notice(error.message)
            return
        finally:
            self._running = False
            self._screen.end_cell()
        self.number = cell.execution_count + 1
        if cell.death:
            notice(f"{cell.death}; variables are gone, files are there")
            self.number = 1

    async def _execute(self, code: str) -> Cell:
        screen = self._screen
        return await self._sandbox.run_code(
            code,
            language=self._language,
            on_stdout=screen.show_stdout,
            on_stderr=screen.show_stderr,
            on_result=lambda bundle: screen.show_result(bundle, self.number),
            on_error=screen.show_error,
            on_input=self._answer,
        )

    async def _answer(self, text: str, is_secret: bool) -> str | None:
        if self._prompt is None:
            return None  # a pipe holds code, not answers
        self._screen.end_line()
        try:
            return await self._prompt.ask(text, is_secret=is_secret)
        except KeyboardInterrupt:
            await self._sandbox.interrupt(self._language)
            return None

    async def attend_interrupts(self, presses: AsyncIterator[signal.Signals]) -> None:
        """Hand Ctrl-C on to the cell that runs; the last resort is a new session."""
        async for _ in presses:
            if not self._running:
                continue
            self._presses += 1
            if self._presses < _PATIENCE:
                await self._sandbox.interrupt(self._language)
            else:
                await self._sandbox.restart(self._language)
            if self._presses == _PATIENCE - 1:
                notice("the cell does not stop; Ctrl-C once more ends the session's variables")
