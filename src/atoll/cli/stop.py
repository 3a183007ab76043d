"""`atoll stop`: end every process of persistent sandboxes, and keep their files."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Parser
from atoll.cli.options import add_json

USAGE = "[--json] SANDBOX …"
SUMMARY = "End every process of persistent sandboxes, and keep their files."
DETAILS = "They go on with 'atoll resume', under the same ids, and end with their lifetimes. A sandbox goes by its name, its id, or the beginning of its id."


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    add_json(parser)
    parser.add_argument("sandboxes", nargs="+", metavar="SANDBOX")


def execute(options: Namespace) -> int:
    """Stop them."""
    from atoll.cli.rests import stop_sandboxes

    return stop_sandboxes(options.sandboxes, as_json=options.json)
