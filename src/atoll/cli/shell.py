"""`atoll shell`: a terminal in a fresh sandbox."""

from __future__ import annotations

import os
from argparse import Namespace

from atoll.cli.arguments import Misuse, Parser
from atoll.cli.options import add_sandbox, read_wish

USAGE = "[options]"
SUMMARY = "Open a shell in a fresh sandbox."
DETAILS = "The sandbox is gone when you leave; --keep saves its files."


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    add_sandbox(parser)


def execute(options: Namespace) -> int:
    """Run a shell until it ends and return its exit code."""
    wish = read_wish(options)
    if not (os.isatty(0) and os.isatty(1)):
        raise Misuse("a shell needs a terminal; for a script use 'atoll run --language bash FILE'")
    from atoll.cli.interaction import interact

    return interact(wish)
