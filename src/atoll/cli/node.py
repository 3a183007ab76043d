"""`atoll node`: a node on this machine, which keeps sandboxes for whoever asks."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from atoll.cli.arguments import Parser
from atoll.cli.options import add_node_files, node_variables

USAGE = "[options]"
SUMMARY = "Run a node that keeps sandboxes between commands."
DETAILS = (
    "It listens on a unix socket that only its user can open; 'atoll create' and its like find it there."
    " SIGTERM and Ctrl-C end it once running requests have been answered."
)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    add_node_files(parser)
    parser.add_argument("--socket", metavar="PATH", type=Path, help="else node.sock in there")


def execute(options: Namespace) -> int:
    """Run until told to end."""
    from atoll.cli.serving import serve_node

    variables = node_variables(ATOLL_DATA=options.data, ATOLL_NODE__SOCKET=options.socket)
    return serve_node(options, variables)
