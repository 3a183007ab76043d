"""`atoll ls`: the sandboxes of the node."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Parser

USAGE = "[--all] [--json]"
SUMMARY = "List the sandboxes of the node."
DETAILS = "The newest come first."


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("--all", action="store_true", help="also those that are no more")
    parser.add_argument("--json", action="store_true", help="print one JSON array")


def execute(options: Namespace) -> int:
    """List them."""
    from atoll.cli.listing import show_sandboxes

    return show_sandboxes(everything=options.all, as_json=options.json)
