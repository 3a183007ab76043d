"""`atoll shell`: a terminal in a fresh sandbox, or in one of the node."""

from __future__ import annotations

import os
from argparse import Namespace

from atoll.cli.arguments import Misuse, Parser
from atoll.cli.options import Wish, add_sandbox, read_wish

USAGE = "[options] [SANDBOX]"
SUMMARY = "Open a shell in a fresh sandbox, or in one of the node."
DETAILS = (
    "A fresh sandbox is gone when you leave; --keep saves its files."
    " One of the node goes by its name, its id, or the beginning of its id, and stays."
)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    add_sandbox(parser)
    parser.add_argument(
        "sandbox", nargs="?", metavar="SANDBOX", help="one of the node; takes no options"
    )


def execute(options: Namespace) -> int:
    """Run a shell until it ends and return its exit code."""
    wish, sandbox = read_wish(options), options.sandbox
    if sandbox is not None and wish != Wish():
        raise Misuse(
            f"these options describe a fresh sandbox, and {sandbox!r} is there already; leave out either"
        )
    if not (os.isatty(0) and os.isatty(1)):
        instead = "run --language bash FILE" if sandbox is None else "exec SANDBOX COMMAND …"
        raise Misuse(f"a shell needs a terminal; for a script use 'atoll {instead}'")
    if sandbox is not None:
        from atoll.cli.remote import run_terminal

        return run_terminal(sandbox, {"cwd": ".", "env": {}, "argv": None})
    from atoll.cli.interaction import interact

    return interact(wish)
