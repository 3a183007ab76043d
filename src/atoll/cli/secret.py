"""`atoll secret`: secrets that sandboxes of the node use and never see."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Misuse, Parser

USAGE = "set NAME --host HOST … [--header H | --query F | --body F] | ls | rm NAME … | rotate"
SUMMARY = "Store, list or remove secrets that sandboxes use and never see."
DETAILS = (
    "The value is asked for, or read from standard input: it is never an argument, which others on this machine could read."
    " A sandbox gets one with 'atoll create --secret VARIABLE=NAME', and the hosts receive it."
)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("action", choices=("set", "ls", "rm", "rotate"), help="what to do")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="who receives it, over TLS; repeatable",
    )
    places = parser.add_mutually_exclusive_group()
    places.add_argument("--header", metavar="NAME", help="the header; Authorization if not said")
    places.add_argument("--query", metavar="FIELD", help="a field of the query instead")
    places.add_argument(
        "--body", metavar="FIELD", help="a field of a form or of JSON, like auth.key"
    )
    parser.add_argument("--template", metavar="TEXT", default="", help="such as 'Bearer {}'")
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(options: Namespace) -> int:
    """Do it on the node."""
    wanted = {"set": range(1, 2), "ls": range(1), "rm": range(1, 1000), "rotate": range(1)}
    if len(options.names) not in wanted[options.action]:
        raise Misuse("'atoll secret set' needs one name, 'rm' some, 'ls' and 'rotate' none")
    if (options.action == "set") != bool(options.host):
        raise Misuse("'atoll secret set' needs --host, and nothing else takes it")
    from atoll.cli.secrets import remove_secrets, rotate_key, set_secret, show_secrets

    match options.action:
        case "set":
            return set_secret(options)
        case "ls":
            return show_secrets(as_json=options.json)
        case "rm":
            return remove_secrets(options.names, as_json=options.json)
        case _:
            return rotate_key(as_json=options.json)
