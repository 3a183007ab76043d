"""`atoll pause`: stop every process of sandboxes in place."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Parser
from atoll.cli.options import add_json

USAGE = "[--json] SANDBOX …"
SUMMARY = "Stop every process of sandboxes in place."
DETAILS = "They keep their memory, and go on with 'atoll resume'. A sandbox goes by its name, its id, or the beginning of its id."


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    add_json(parser)
    parser.add_argument("sandboxes", nargs="+", metavar="SANDBOX")


def execute(options: Namespace) -> int:
    """Pause them."""
    from atoll.cli.rests import pause_sandboxes

    return pause_sandboxes(options.sandboxes, as_json=options.json)
