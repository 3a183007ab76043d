"""`atoll exec`: a command in a sandbox of the node."""

from __future__ import annotations

import os
from argparse import REMAINDER, Namespace

from atoll.cli.arguments import Misuse, Parser
from atoll.cli.options import add_json, read_assignments

USAGE = "[options] SANDBOX [--] COMMAND …"
SUMMARY = "Run a command in a sandbox of the node."
DETAILS = (
    "Its exit code is passed on: 128 + n for signal n, 124 for a timeout; 125 is Atoll's own failure."
    " Standard input is passed on unless it is a terminal; -i passes that on, too."
)


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("-i", dest="interactive", action="store_true", help="pass all input on")
    parser.add_argument("-t", dest="terminal", action="store_true", help="on a terminal")
    parser.add_argument("-it", dest="both", action="store_true", help="both")
    parser.add_argument("--cwd", metavar="DIR", default=".", help="where to run it")
    parser.add_argument("--env", metavar="NAME=VALUE", action="append", default=[])
    parser.add_argument("--timeout", metavar="TIME", help="stop it then, such as 30s")
    add_json(parser)
    parser.add_argument("sandbox", metavar="SANDBOX")
    parser.add_argument("command", nargs=REMAINDER, metavar="COMMAND …")


def execute(options: Namespace) -> int:
    """Run the command and return its exit code."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    on_terminal = options.terminal or options.both
    if not command and not on_terminal:
        raise Misuse("no command: name one, or -it for a shell")
    if on_terminal and options.json:
        raise Misuse("--json tells what a command printed, and -t shows it; leave out either")
    if on_terminal and not (os.isatty(0) and os.isatty(1)):
        raise Misuse("-t needs a terminal; leave it out for a script")
    body = {
        "cwd": options.cwd,
        "env": read_assignments("--env", options.env),
        "argv": command or None,
    }
    if options.timeout is not None:
        body["timeout"] = options.timeout
    from atoll.cli.remote import run_command, run_terminal

    if on_terminal:
        return run_terminal(options.sandbox, body)
    return run_command(options.sandbox, body, takes_stdin=options.interactive, as_json=options.json)
