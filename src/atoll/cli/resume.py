"""`atoll resume`: let sandboxes go on that are paused or stopped."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Parser
from atoll.cli.options import add_json

USAGE = "[--json] SANDBOX …"
SUMMARY = "Let sandboxes go on that are paused or stopped."
DETAILS = "A sandbox goes by its name, its id, or the beginning of its id."


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    add_json(parser)
    parser.add_argument("sandboxes", nargs="+", metavar="SANDBOX")


def execute(options: Namespace) -> int:
    """Resume them."""
    from atoll.cli.rests import resume_sandboxes

    return resume_sandboxes(options.sandboxes, as_json=options.json)
