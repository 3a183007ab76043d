"""Languages: which interpreter runs a program, told by its name or its first line, and which program is a kernel of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from atoll.errors import InvalidRequest
from atoll.model.guest import GUEST
from atoll.model.template import (
    DENO_TEMPLATE,
    JULIA_TEMPLATE,
    NODE_TEMPLATE,
    PYTHON_TEMPLATE,
    R_TEMPLATE,
)

_VERSION_END = re.compile(r"[\d.]+$")
# Not by the module's name: the workspace, where a kernel begins, may hold others of that name. What kernels need beyond
# the standard library comes last: an image may have its own.
_PYTHON_KERNEL = (
    "import os, sys; paths = [os.environ.get(name, '') for name in ('PYTHONPATH', 'ATOLL_PACKAGES')];"
    f" sys.path += [{GUEST!r}, *filter(None, ':'.join(paths).split(':'))]; del os, paths;"
    " from atoll_guest.{} import main; main()"
)
# Node cannot move a descriptor itself. The parser that it carries within itself is out of sight without the first option.
_NODE_KERNEL = (
    f"exec node --expose-internals --no-warnings {GUEST}/atoll_guest/node/main.js 9<&0 </dev/null"
)
# Neither can Deno. Without the first option it tells everybody of its inspector; what it may do is the sandbox's to say. The last
# has it know modules of Node's older kind by what is in them.
_DENO_KERNEL = (
    "exec deno run --quiet --allow-all --no-lock --unstable-detect-cjs"
    f" {GUEST}/atoll_guest/deno/main.js 9<&0 </dev/null"
)
# Julia makes of its standard input a stream of its own.
_JULIA_KERNEL = (
    "exec julia --startup-file=no --history-file=no --color=no"
    f" {GUEST}/atoll_guest/julia/main.jl 9<&0 </dev/null"
)
# Leaves nothing behind, and has every part of the kernel loaded and tried.
_JAVASCRIPT_REHEARSAL = "await 0; for (const each of [1]) { console.log(each) } ({ each: [1] })"
_JULIA_REHEARSAL = 'for each in 1:1 println(each) end; ("each", [1.5 2.5])'


@dataclass(frozen=True, slots=True)
class Language:
    """A language, its interpreter inside the sandbox and how that takes its program."""

    name: str
    interpreter: str
    inline: str
    endings: tuple[str, ...]
    after_code: tuple[str, ...] = ()
    also_called: tuple[str, ...] = ()
    # The program that is a kernel of it, where none can be forked; empty: there are no kernels of it.
    kernel: tuple[str, ...] = ()
    rehearsal: str = ""  # a cell that leaves nothing behind, for a kernel that is to be warm
    before_file: tuple[str, ...] = ()
    # How many interrupts in a row have the interpreter end what never looks up for one.
    interrupts: int = 1

    def run_file(self, path: str, arguments: Sequence[str]) -> Sequence[str]:
        """Return the command for a program in a file of the workspace."""
        # A name that starts with '-' would be taken for an option of the interpreter.
        return (self.interpreter, *self.before_file, f"./{path}", *arguments)

    def run_code(self, code: str, arguments: Sequence[str]) -> Sequence[str]:
        """Return the command for a program given as text."""
        return (self.interpreter, self.inline, code, *self.after_code, *arguments)


LANGUAGES = (
    Language(
        "python",
        "python3",
        "-c",
        (".py", ".pyw"),
        also_called=("py",),
        kernel=("python3", "-I", "-B", "-c", _PYTHON_KERNEL.format("__main__")),
        rehearsal="print()",
    ),
    Language(
        "node",
        "node",
        "-e",
        (".js", ".mjs", ".cjs", ".ts", ".mts"),
        ("--",),
        ("javascript", "js", "typescript", "ts"),
        ("sh", "-c", _NODE_KERNEL),
        _JAVASCRIPT_REHEARSAL,
    ),
    Language(
        "deno",
        "deno",
        "eval",
        (),
        kernel=("sh", "-c", _DENO_KERNEL),
        rehearsal=_JAVASCRIPT_REHEARSAL,
        # What it may do is the sandbox's to say.
        before_file=("run", "--allow-all"),
    ),
    # The first argument after the code is $0.
    Language(
        "bash",
        "bash",
        "-c",
        (".sh", ".bash"),
        ("bash",),
        ("shell",),
        ("python3", "-I", "-S", "-B", "-c", _PYTHON_KERNEL.format("bash")),
    ),
    Language("sh", "sh", "-c", (), ("sh",)),
    Language(
        "r",
        "Rscript",
        "-e",
        (".r",),
        also_called=("rscript",),
        kernel=(
            "R",
            "--no-echo",
            "--no-save",
            "--no-restore",
            "--no-init-file",
            f"--file={GUEST}/atoll_guest/r/kernel.R",
        ),
    ),
    Language(
        "julia",
        "julia",
        "-e",
        (".jl",),
        ("--",),
        ("jl",),
        ("sh", "-c", _JULIA_KERNEL),
        _JULIA_REHEARSAL,
        interrupts=5,
    ),
    Language("perl", "perl", "-e", (".pl",), ("--",)),
    Language("ruby", "ruby", "-e", (".rb",), ("--",)),
)
NAMES = tuple(language.name for language in LANGUAGES)
PYTHON = LANGUAGES[0]

# What cells are in that name no language, by the template of their sandbox; elsewhere it is Python.
_BY_TEMPLATE = {
    NODE_TEMPLATE: "node",
    DENO_TEMPLATE: "deno",
    R_TEMPLATE: "r",
    JULIA_TEMPLATE: "julia",
}


def find_language(name: str) -> Language | None:
    """Return the language of that name, or None."""
    wanted = name.lower()
    for language in LANGUAGES:
        if wanted == language.name or wanted in language.also_called:
            return language
    return None


def find_kernel_language(name: str) -> Language:
    """Return a language that there are kernels of; raise `InvalidRequest` for any other name."""
    language = find_language(name) if isinstance(name, str) else None
    if language is None or not language.kernel:
        known = ", ".join(each.name for each in LANGUAGES if each.kernel)
        raise InvalidRequest(
            f"there is no kernel for {str(name)[:80]!r}; there is: {known}. Other programs run with commands.run",
            language=str(name)[:80],
        )
    return language


def language_of(template: str) -> str:
    """Return the language of cells that name none, in a sandbox of this template."""
    return _BY_TEMPLATE.get(template, PYTHON.name)


def home_of(language: str) -> str:
    """Return the template in which kernels of a language start soonest."""
    return next(
        (name for name, spoken in _BY_TEMPLATE.items() if spoken == language), PYTHON_TEMPLATE
    )


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
