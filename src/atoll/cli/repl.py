"""`atoll repl`: a live session in a fresh sandbox."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Misuse, Parser
from atoll.cli.options import add_sandbox, read_wish
from atoll.errors import InvalidRequest
from atoll.model.language import LANGUAGES, PYTHON, find_kernel_language

USAGE = "[options]"
SUMMARY = "Talk to a live Python, Node, R or shell in a fresh sandbox."
DETAILS = (
    "Tab completes, 'name?' explains, Ctrl-C interrupts, Ctrl-D leaves. Without a terminal the code comes from"
    " standard input. The sandbox is gone when you leave; --keep saves its files."
)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    names = [each.name for each in LANGUAGES if each.kernel]
    parser.add_argument(
        "--language",
        metavar="NAME",
        default=PYTHON.name,
        help=f"{', '.join(names)}; python if not said",
    )
    add_sandbox(parser)


def execute(options: Namespace) -> int:
    """Run the session until it ends."""
    wish = read_wish(options)
    try:
        language = find_kernel_language(options.language)
    except InvalidRequest as error:
        raise Misuse(f"--language: {error.message}") from error
    # Loaded last: a mistyped command line is answered without it.
    from atoll.cli.repl_session import run_session

    return run_session(wish, language.name)
