"""`atoll workspace`: the workspaces that outlive their sandboxes."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Misuse, Parser

USAGE = "ls [--all] [--json] | rm [--json] ID …"
SUMMARY = "List or remove workspaces that are kept."
DETAILS = (
    "They are made by --workspace ID of 'atoll run' and 'atoll create', and stay until they are removed."
    " Those of the data directory are meant, or of the node that ATOLL_URL names."
)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("action", choices=("ls", "rm"), help="list them all, or remove some")
    parser.add_argument(
        "--all", action="store_true", help="list those of all users with their owners; for admins"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.add_argument("workspaces", nargs="*", metavar="ID")


def execute(options: Namespace) -> int:
    """List or remove them."""
    if (options.action == "rm") != bool(options.workspaces):
        raise Misuse("'atoll workspace rm' needs the ids to remove, and 'atoll workspace ls' none")
    if options.all and options.action != "ls":
        raise Misuse("--all goes with 'atoll workspace ls' alone")
    from atoll.cli.workspaces import remove_workspaces, show_workspaces

    if options.action == "ls":
        return show_workspaces(of_all=options.all, as_json=options.json)
    return remove_workspaces(options.workspaces, as_json=options.json)
