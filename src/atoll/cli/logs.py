"""`atoll logs`: what commands, cells and terminals printed."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Parser

USAGE = "[-f] [--json] EXECUTION|SANDBOX"
SUMMARY = "Show what was printed in a sandbox of the node."
DETAILS = "Of a sandbox it shows all executions, the oldest first; also after its end."


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("-f", "--follow", action="store_true", help="go on until it ends")
    parser.add_argument("--json", action="store_true", help="one event per line")
    parser.add_argument("key", metavar="EXECUTION|SANDBOX")


def execute(options: Namespace) -> int:
    """Show it."""
    from atoll.cli.log_reading import show_logs

    return show_logs(options.key, follow=options.follow, as_json=options.json)
