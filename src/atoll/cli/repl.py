"""`atoll repl`: a live Python session in a fresh sandbox."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Parser
from atoll.cli.options import add_sandbox, read_wish

USAGE = "[options]"
SUMMARY = "Talk to a live Python in a fresh sandbox."
DETAILS = (
    "Tab completes, 'name?' explains, Ctrl-C interrupts, Ctrl-D leaves. Without a terminal the code comes from"
    " standard input. The sandbox is gone when you leave; --keep saves its files."
)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    add_sandbox(parser)


def execute(options: Namespace) -> int:
    """Run the session until it ends."""
    wish = read_wish(options)
    # Loaded last: a mistyped command line is answered without it.
    from atoll.cli.repl_session import run_session

    return run_session(wish)
