"""`atoll token`: tokens that let programs and people in."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Misuse, Parser

USAGE = "create [--name TEXT] [--scope S] [--sandbox KEY] [--expires TIME] [--user U] | ls [--user U] | rm ID …"
SUMMARY = "Make, list or revoke tokens for the server."
DETAILS = (
    "A token is shown once, when it is made; programs send it as 'Authorization: Bearer …', or find it in ATOLL_TOKEN."
    " 'rm' makes it void at once."
)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("action", choices=("create", "ls", "rm"), help="what to do")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--name", metavar="TEXT", help="what it is for")
    parser.add_argument(
        "--scope",
        choices=("admin", "member", "read", "sandbox"),
        help="what it lets one do: everything, all with what is the user's (if not said),"
        " only look, or all in one sandbox",
    )
    parser.add_argument("--sandbox", metavar="KEY", help="id or name, with scope sandbox")
    parser.add_argument("--expires", metavar="TIME", help="how long it is valid, such as 30d")
    parser.add_argument("--user", metavar="NAME", help="whose it is; only for admins")
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(options: Namespace) -> int:
    """Do it on the node."""
    if (options.action == "rm") != bool(options.ids):
        raise Misuse("'atoll token rm' needs ids, and nothing else takes them")
    chosen = (options.name, options.scope, options.sandbox, options.expires)
    if options.action != "create" and any(each is not None for each in chosen):
        raise Misuse("--name, --scope, --sandbox and --expires go with 'atoll token create'")
    from atoll.cli.tokens import create_token, revoke_tokens, show_tokens

    match options.action:
        case "create":
            return create_token(options)
        case "ls":
            return show_tokens(options.user, as_json=options.json)
        case _:
            return revoke_tokens(options.ids, as_json=options.json)
