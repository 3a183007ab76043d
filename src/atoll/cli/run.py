"""`atoll run`: one program in a fresh sandbox."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from atoll.cli.arguments import Misuse, Parser
from atoll.cli.options import add_json, add_sandbox, read_wish
from atoll.cli.program import read_program
from atoll.model.language import NAMES

USAGE = "[options] [FILE|-|NOTEBOOK.ipynb] [arguments]"
SUMMARY = "Run a program in a fresh sandbox."
DETAILS = (
    "Its exit code is passed on: 128 + n for signal n, 124 for a timeout; 125 is Atoll's own failure."
    " Standard output is the program's alone. What follows the program belongs to it."
    " Of a notebook the cells are run, and what comes of them is written into it; the code is 1 if one failed."
)
_NOTEBOOK = ".ipynb"


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("-c", metavar="CODE", dest="code", help="the program as text")
    parser.add_argument("--language", metavar="NAME", help=f"{', '.join(NAMES)}; else guessed")
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, help="stop it then")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write the notebook there instead"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="run a notebook's cells after one that failed"
    )
    add_sandbox(parser)
    add_json(parser)
    parser.add_argument(
        "program",
        nargs=REMAINDER,
        metavar="FILE …",
        help="program and its arguments; - is standard input",
    )


def execute(options: Namespace) -> int:
    """Run the program and return its exit code."""
    wish = read_wish(options)
    words = options.program[1:] if options.program[:1] == ["--"] else options.program
    if _is_notebook(options, words):
        from atoll.cli.notebook_run import read_errand, run_notebook

        return run_notebook(wish, read_errand(options, words))
    if options.output is not None or options.keep_going:
        raise Misuse("--output and --keep-going are for notebooks, whose names end with .ipynb")
    program = read_program(words, options.code, options.language, options.files)
    # Loaded last: a mistyped command line is answered without it.
    from atoll.cli.execution import run_program

    return run_program(wish, program, options.timeout, as_json=options.json)


def _is_notebook(options: Namespace, words: Sequence[str]) -> bool:
    named = bool(words) and words[0].lower().endswith(_NOTEBOOK)
    return named and options.code is None and options.language is None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
