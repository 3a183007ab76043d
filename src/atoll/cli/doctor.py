"""`atoll doctor`: what this machine gives for sandboxes, and what would make it safer."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Parser
from atoll.cli.options import add_json

USAGE = "[--json]"
SUMMARY = "Check this machine; every failing line names its fix."
DETAILS = "'fail' is what an engine needs, 'warn' is advice. Exits with 1 only if no engine works."


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    add_json(parser)


def execute(options: Namespace) -> int:
    """Examine the machine and show what was found."""
    from atoll.cli.examination import examine_machine, print_examination

    examination = examine_machine()
    print_examination(examination, as_json=options.json)
    return 0 if examination.working_engines else 1
