"""`atoll egress`: what a sandbox of the node tried to reach."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Parser

USAGE = "log [-f] [--json] SANDBOX"
SUMMARY = "Show what a sandbox of the node tried to reach."
DETAILS = "The oldest first; also after its end. What was refused says which rule would allow it."


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("action", choices=("log",), help="show all attempts that are kept")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until it ends")
    parser.add_argument("--json", action="store_true", help="one attempt per line")
    parser.add_argument("sandbox", metavar="SANDBOX")


def execute(options: Namespace) -> int:
    """Show it."""
    from atoll.cli.attempts import show_attempts

    return show_attempts(options.sandbox, follow=options.follow, as_json=options.json)
