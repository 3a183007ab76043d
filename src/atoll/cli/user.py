"""`atoll user`: who has sandboxes of his own on the server."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Misuse, Parser

USAGE = "add NAME [--admin] | ls | disable NAME … | enable NAME …"
SUMMARY = "Add, list, disable or enable users of the server."
DETAILS = (
    "A user sees nothing of what others have. Who is disabled is kept out at once; what is his stays."
    " 'atoll token create --user NAME' makes a token for one."
)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("action", choices=("add", "ls", "disable", "enable"), help="what to do")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--admin", action="store_true", help="he may look after the server")
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(options: Namespace) -> int:
    """Do it on the node."""
    wanted = {"add": range(1, 2), "ls": range(1)}.get(options.action, range(1, 1000))
    if len(options.names) not in wanted:
        raise Misuse("'atoll user add' needs one name, 'disable' and 'enable' some, 'ls' none")
    if options.admin and options.action != "add":
        raise Misuse("--admin goes with 'atoll user add'")
    from atoll.cli.users import add_user, change_users, show_users

    match options.action:
        case "add":
            return add_user(options.names[0], is_admin=options.admin, as_json=options.json)
        case "ls":
            return show_users(as_json=options.json)
        case action:
            return change_users(options.names, action, as_json=options.json)
