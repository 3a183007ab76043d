"""Where one cell ends and the next begins, in lines as people type or pipe them; no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from atoll.cli.repl_julia import JuliaReader

# What opens a part of a program, by what closes it.
_PAIRS = {")": "(", "]": "[", "}": "{", "fi": "if", "done": "do", "esac": "case"}
_BRACKETS = frozenset("()[]{}")
_SHELL_WORD = re.compile(r"(?<![\w$./-])(if|fi|do|done|case|esac)(?![\w./=-])")
_INDENT = 2
_CONTINUATIONS = ("else", "elif", "except", "finally")


class CellReader(Protocol):
    """Judges whether code is whole."""

    def is_whole(self, code: str) -> bool:
        """Whether code can be run as it is; a block may go on and is whole after an empty line."""
        ...

    def indent(self, code: str) -> int:
        """Return by how many spaces the next line of unfinished code is to be indented."""
        ...


def make_reader(language: str) -> CellReader:
    """Return who judges code of a language."""
    if language == "python":
        return PythonReader()
    return JuliaReader() if language == "julia" else PairReader(language)


class PairReader:
    """Judges code by what is opened in it and not closed. An empty line ends also what was never closed."""

    def __init__(self, language: str) -> None:
        self._is_shell = language == "bash"
        self._comment = re.compile(
            r"//[^\n]*|/\*.*?(?:\*/|$)" if language == "node" else r"#[^\n]*", re.DOTALL
        )

    def is_whole(self, code: str) -> bool:
        """Whether all that is opened is closed, and the last line does not go on."""
        if code.endswith("\n\n"):
            return True
        return not code.rstrip(" ").endswith("\\") and not self._open_parts(code)

    def indent(self, code: str) -> int:
        """Return two spaces for each part that is open."""
        return _INDENT * len(self._open_parts(code))

    def _open_parts(self, code: str) -> Sequence[str]:
        open_parts: list[str] = []
        for mark in self._marks(code):
            opener = _PAIRS.get(mark)
            if opener is None:
                open_parts.append(mark)
            elif opener in open_parts:
                while open_parts.pop() != opener:
                    pass
        return open_parts

    def _marks(self, code: str) -> Iterator[str]:
        """Yield what opens or closes a part outside of texts and comments; a text without an end opens one."""
        at = 0
        while at < len(code):
            if (comment := self._comment.match(code, at)) and (at == 0 or code[at - 1] in " \t\n;"):
                at = comment.end()
            elif code[at] in "'\"`":
                text = _text(code, at, raw=self._is_shell and code[at] == "'")
                if text is None:
                    yield code[at]
                    return
                at = text
            elif self._is_shell and (word := _SHELL_WORD.match(code, at)):
                yield word[1]
                at = word.end()
            else:
                if code[at] in _BRACKETS:
                    yield code[at]
                at += 2 if code[at] == "\\" else 1


def _text(code: str, start: int, *, raw: bool) -> int | None:
    """Return where the text ends that begins here, None if it does not."""
    at = start + 1
    while at < len(code):
        if code[at] == code[start]:
            return at + 1
        at += 2 if code[at] == "\\" and not raw else 1
    return None


def lexer_name(language: str) -> str:
    """Return by which name a language's colours are known."""
    return {"node": "javascript", "deno": "typescript", "python": "ipython"}.get(language, language)


class PythonReader:
    """Judges Python with all that IPython adds to the language."""

    def __init__(self) -> None:
        # Loaded here: other languages do without.
        from IPython.core.inputtransformer2 import TransformerManager

        make: Any = TransformerManager
        self._transformers = make()

    def is_whole(self, code: str) -> bool:
        """Whether code can be run as it is; a block may go on and is whole after an empty line."""
        return self._judge(code)[0] != "incomplete"

    def indent(self, code: str) -> int:
        """Return by how many spaces the next line of unfinished code is to be indented."""
        return self._judge(code)[1] or 0

    def _judge(self, code: str) -> tuple[str, int | None]:
        status, indent = self._transformers.check_complete(code)
        return str(status), indent


class CellSplitter:
    """Takes the lines of a program one by one and gives the cells that they complete.

    A simple statement is a cell as soon as it is whole. A block ends with the next line that is not part of
    it: empty lines belong to a block, as they do in a file.
    """

    def __init__(self, language: str = "python") -> None:
        self._reader = make_reader(language)
        self._lines: list[str] = []

    def feed(self, line: str) -> Sequence[str]:
        """Take one line; return the cells that are complete now."""
        cells = []
        if self._lines and self._begins_cell(line):
            cells.append(self._take())
        if self._lines or line.strip():
            self._lines.append(line)
        if self._lines and self._is_done(line):
            cells.append(self._take())
        return cells

    def finish(self) -> Sequence[str]:
        """Return what is left at the end."""
        return [self._take()] if self._lines else []

    def _begins_cell(self, line: str) -> bool:
        if not line.strip() or line[0].isspace() or line.startswith(("#", *_CONTINUATIONS)):
            return False
        return self._reader.is_whole("\n".join(self._lines) + "\n")

    def _is_done(self, line: str) -> bool:
        # After an empty line any block would count as whole, but only a magic's text ends with one.
        if not line.strip() and not self._lines[0].startswith("%%"):
            return False
        return self._reader.is_whole("\n".join(self._lines))

    def _take(self) -> str:
        lines, self._lines = self._lines, []
        return "\n".join(lines)
