"""`atoll up`: a first sandbox, and what can be seen of its walls from inside."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Parser
from atoll.cli.options import Wish, add_engine, add_json, read_limits

USAGE = "[options]"
SUMMARY = "Run a first sandbox on this machine and show what came back."
DETAILS = ""


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    add_engine(parser)
    add_json(parser)


def execute(options: Namespace) -> int:
    """Run the first sandbox."""
    from atoll.cli.first_sandbox import show_first_sandbox

    limits = read_limits(None, None, None, options.best_effort)
    return show_first_sandbox(Wish(options.engine, limits), as_json=options.json)
