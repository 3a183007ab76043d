"""`atoll up`: a server on this machine, for a browser, for programs and for others."""

from __future__ import annotations

from argparse import Namespace

from atoll.cli.arguments import Parser
from atoll.cli.options import add_json, add_node_files, node_variables

USAGE = "[options]"
SUMMARY = "Start a server with a page, for you and for others."
DETAILS = (
    "It is a node that also listens at an address. The first start makes an admin's token, which is shown this once;"
    " each start gives an address that logs a browser in once. SIGTERM and Ctrl-C end it once running requests have"
    " been answered."
)
_WAYS = ("token", "github", "secret", "none")


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("--host", "-H", metavar="HOST", help="where to listen; else 127.0.0.1")
    parser.add_argument("--port", "-p", metavar="PORT", help="else 8000; 0 is any that is free")
    parser.add_argument("--vhost", metavar="NAME", help="the name by which it is known")
    parser.add_argument(
        "--auth", action="append", choices=_WAYS, metavar="WAY", help="token, github, secret, none"
    )
    parser.add_argument("--db", metavar="URL", help="database, or a path for SQLite")
    add_node_files(parser)
    add_json(parser)


def execute(options: Namespace) -> int:
    """Serve until told to end."""
    from atoll.cli.serving import serve_node
    from atoll.cli.welcome import welcome_to
    from atoll.server.setting_aliases import as_database

    variables = node_variables(
        ATOLL_DATA=options.data,
        ATOLL_SERVER__HOST=options.host,
        ATOLL_SERVER__PORT=options.port,
        ATOLL_SERVER__VHOST=options.vhost,
        ATOLL_AUTH__WAYS=None if options.auth is None else ",".join(options.auth),
        ATOLL_STORE__URL=None if options.db is None else as_database(options.db),
    )
    return serve_node(options, variables, lambda settings: welcome_to(settings, options.json))
