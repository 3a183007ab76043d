"""The line where cells are typed: highlighting, history, several lines, and completion by the live session."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers import find_lexer_class_by_name

from atoll import AsyncSandbox
from atoll.cli.messages import notice, printable
from atoll.cli.repl_cells import CellReader, lexer_name, make_reader
from atoll.errors import AtollError

_INDENT = 4


class Prompt:
    """Reads cells from the person at the terminal."""

    def __init__(self, sandbox: AsyncSandbox, history: Path, language: str) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_open_history(history),
            lexer=PygmentsLexer(find_lexer_class_by_name(lexer_name(language))),
            completer=SessionCompleter(sandbox, language),
            complete_while_typing=False,
            enable_history_search=True,
            key_bindings=_make_bindings(make_reader(language)),
            multiline=True,
            prompt_continuation=lambda width, _line, _wraps: "...: ".rjust(width),
        )

    async def read(self, number: int) -> str | None:
        """Return the next cell, nothing if it was given up with Ctrl-C, None at the end."""
        try:
            # Signals are seen to elsewhere, during a prompt and between prompts alike.
            return await self._session.prompt_async(f"In [{number}]: ", handle_sigint=False)
        except KeyboardInterrupt:
            return ""
        except EOFError:
            return None

    async def ask(self, text: str, *, is_secret: bool) -> str | None:
        """Return the line that code inside asks for; None at the end, as with Ctrl-D."""
        question: PromptSession[str] = PromptSession(is_password=is_secret)
        try:
            return await question.prompt_async(printable(text), handle_sigint=False)
        except EOFError:
            return None


class SessionCompleter(Completer):
    """Completes by what the live session knows."""

    def __init__(self, sandbox: AsyncSandbox, language: str) -> None:
        self._sandbox = sandbox
        self._language = language

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """Return nothing: only the form below can wait for the session."""
        return ()

    async def get_completions_async(
        self, document: Document, event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield what can stand at the cursor."""
        asking = asyncio.ensure_future(
            self._sandbox.complete(document.text, document.cursor_position, language=self._language)
        )
        asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        try:
            # Typing on gives up this wait, but the session must not be interrupted for that.
            found = await asyncio.shield(asking)
        except AtollError:
            return
        for text in found.matches:
            yield Completion(text, start_position=found.start - found.end)


def _open_history(path: Path) -> History:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What people type may be nobody else's business.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    except OSError as error:
        notice(f"history is not kept: {path}: {error.strerror}")
        return InMemoryHistory()
    return FileHistory(path)


def _make_bindings(reader: CellReader) -> KeyBindings:
    bindings = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @bindings.add("enter", filter=typing)
    def run_or_go_on(event: KeyPressEvent) -> None:
        """Run the cell if it is whole and the cursor at its end; else begin a line."""
        buffer = event.current_buffer
        if buffer.complete_state is not None:
            buffer.complete_state = None
            return
        text = buffer.document.text
        if buffer.document.text_after_cursor.strip():
            buffer.newline()
        elif reader.is_whole(text):
            # Without the empty line that ended a block.
            buffer.document = Document(text.rstrip())
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n" + " " * reader.indent(text))

    @bindings.add("tab", filter=typing)
    def indent_or_complete(event: KeyPressEvent) -> None:
        """Indent at the beginning of a line; else complete, and go through the choices."""
        buffer = event.current_buffer
        before = buffer.document.current_line_before_cursor
        if not before.strip():
            buffer.insert_text(" " * (_INDENT - len(before) % _INDENT))
        elif buffer.complete_state is not None:
            buffer.complete_next()
        else:
            buffer.start_completion(insert_common_part=True)

    return bindings
