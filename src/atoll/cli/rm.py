"""`atoll rm`: destroys sandboxes of the node."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Misuse, Parser
from atoll.cli.options import add_json

USAGE = "[--json] SANDBOX … | --all"
SUMMARY = "Destroy sandboxes of the node."
DETAILS = "A sandbox goes by its name, its id, or the beginning of its id."


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("--all", action="store_true", help="all of yours")
    add_json(parser)
    parser.add_argument("sandboxes", nargs="*", metavar="SANDBOX")


def execute(options: Namespace) -> int:
    """Destroy them."""
    if options.all == bool(options.sandboxes):
        raise Misuse("name the sandboxes to destroy, or --all")
    from atoll.cli.listing import remove_sandboxes

    return remove_sandboxes(options.sandboxes, everything=options.all, as_json=options.json)
