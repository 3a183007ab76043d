"""Which interpreter runs a program, told by its name or its first line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_VERSION_END = re.compile(r"[\d.]+$")


@dataclass(frozen=True, slots=True)
class Language:
    """A language, its interpreter inside the sandbox and how that takes its program."""

    name: str
    interpreter: str
    inline: str
    endings: tuple[str, ...]
    after_code: tuple[str, ...] = ()
    also_called: tuple[str, ...] = ()

    def run_file(self, path: str, arguments: Sequence[str]) -> Sequence[str]:
        """Return the command for a program in a file of the workspace."""
        # A name that starts with '-' would be taken for an option of the interpreter.
        return (self.interpreter, f"./{path}", *arguments)

    def run_code(self, code: str, arguments: Sequence[str]) -> Sequence[str]:
        """Return the command for a program given as text."""
        return (self.interpreter, self.inline, code, *self.after_code, *arguments)


LANGUAGES = (
    Language("python", "python3", "-c", (".py", ".pyw"), also_called=("py",)),
    Language(
        "node", "node", "-e", (".js", ".mjs", ".cjs", ".ts", ".mts"), ("--",), ("javascript", "js")
    ),
    # The first argument after the code is $0.
    Language("bash", "bash", "-c", (".sh", ".bash"), ("bash",)),
    Language("sh", "sh", "-c", (), ("sh",)),
    Language("r", "Rscript", "-e", (".r",), also_called=("rscript",)),
    Language("perl", "perl", "-e", (".pl",), ("--",)),
    Language("ruby", "ruby", "-e", (".rb",), ("--",)),
)
NAMES = tuple(language.name for language in LANGUAGES)
PYTHON = LANGUAGES[0]


def find_language(name: str) -> Language | None:
    """Return the language of that name, or None."""
    wanted = name.lower()
    for language in LANGUAGES:
        if wanted == language.name or wanted in language.also_called:
            return language
    return None


def guess_language(file_name: str, head: bytes) -> Language:
    """Return the language of a program by its ending, else its first line, else Python."""
    for language in LANGUAGES:
        if file_name.lower().endswith(language.endings or "\0"):
            return language
    return _by_first_line(head) or PYTHON


def _by_first_line(head: bytes) -> Language | None:
    if not head.startswith(b"#!"):
        return None
    words = head.partition(b"\n")[0][2:].decode("utf-8", "replace").split()
    names = [word.rpartition("/")[2] for word in words if not word.startswith("-")]
    if names and names[0] == "env":
        names = names[1:]
    return find_language(_VERSION_END.sub("", names[0])) if names else None
