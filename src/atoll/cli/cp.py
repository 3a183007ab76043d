"""`atoll cp`: files between this machine and a sandbox of the node."""

from __future__ import annotations

import re
from argparse import Namespace

from atoll.cli.arguments import Misuse, Parser
from atoll.cli.options import add_json

USAGE = "[--json] SOURCE TARGET"
SUMMARY = "Copy files into or out of a sandbox of the node."
DETAILS = (
    "One of both is SANDBOX:PATH, the other a path here, or - for a tar archive on standard input or output."
    " A file becomes TARGET; of a directory all that it holds goes into TARGET. Links are left out."
)
_INSIDE = re.compile(r"([a-z0-9-]{1,40}):(.*)", re.DOTALL)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    add_json(parser)
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET")


def execute(options: Namespace) -> int:
    """Copy."""
    source, target = _INSIDE.fullmatch(options.source), _INSIDE.fullmatch(options.target)
    if (source is None) == (target is None):
        raise Misuse(
            "one of both has to be SANDBOX:PATH, such as box:data.csv; begin ./ for a path here"
        )
    if options.json and options.target == "-":
        raise Misuse(
            "--json and an archive cannot both go to standard output; name another TARGET than -"
        )
    from atoll.cli.packing import copy_in, copy_out

    if target is not None:
        return copy_in(options.source, target[1], target[2] or ".", as_json=options.json)
    assert source is not None
    return copy_out(source[1], source[2] or ".", options.target, as_json=options.json)
