"""The program that `atoll run` was given: a file, a text, or standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll.cli.arguments import Misuse
from atoll.model.language import NAMES, Language, find_language, guess_language

MAX_PROGRAM_BYTES = 64 << 20
_STDIN = "-"


@dataclass(frozen=True, slots=True)
class Program:
    """What to run; `content` is written to `path` in the workspace first, if there is any."""

    argv: Sequence[str]
    path: str | None = None
    content: bytes = b""
    takes_stdin: bool = True


def read_program(
    words: Sequence[str], code: str | None, language_name: str | None, files: Path | None
) -> Program:
    """Return the program of a command line; raise a usage error if it names none."""
    language = _named_language(language_name)
    if code is not None:
        return Program((language or guess_language("", os.fsencode(code))).run_code(code, words))
    source, arguments = (words[0], words[1:]) if words else (_STDIN, [])
    if source == _STDIN:
        return _from_stdin(language, arguments, asked_for=bool(words))
    return _from_file(Path(source), language, arguments, files)


def _named_language(name: str | None) -> Language | None:
    if name is None:
        return None
    language = find_language(name)
    if language is None:
        raise Misuse(f"--language {name} is none of {', '.join(NAMES)}")
    return language


def _from_stdin(language: Language | None, arguments: Sequence[str], *, asked_for: bool) -> Program:
    if sys.stdin is None or (sys.stdin.isatty() and not asked_for):
        raise Misuse("no program: give a FILE, -c CODE, or a program on standard input")
    content = sys.stdin.buffer.read(MAX_PROGRAM_BYTES + 1)
    _check_size("the program on standard input", len(content))
    language = language or guess_language("", content[:256])
    path = f"main{language.endings[0] if language.endings else ''}"
    return Program(language.run_file(path, arguments), path, content, takes_stdin=False)


def _from_file(
    file: Path, language: Language | None, arguments: Sequence[str], files: Path | None
) -> Program:
    content = read_file(file)
    language = language or guess_language(file.name, content[:256])
    path = _path_inside(file, files)
    return Program(language.run_file(path, arguments), path, content)


def read_file(file: Path) -> bytes:
    """Return what a file holds that was named on the command line; raise a usage error if it cannot be had."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_PROGRAM_BYTES + 1)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise Misuse(f"cannot read {file}: {reason}") from error
    _check_size(str(file), len(content))
    return content


def _path_inside(file: Path, files: Path | None) -> str:
    """A program that lies in the copied directory keeps its place there; others go to the top."""
    if files is not None and file.resolve().is_relative_to(files.resolve()):
        return str(file.resolve().relative_to(files.resolve()))
    return file.name


def _check_size(what: str, size: int) -> None:
    if size > MAX_PROGRAM_BYTES:
        raise Misuse(
            f"{what} is larger than {MAX_PROGRAM_BYTES >> 20} MiB; copy data in with --files instead"
        )
