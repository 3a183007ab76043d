"""`atoll create`: a sandbox on the node, for other commands to use."""

from __future__ import annotations

from argparse import REMAINDER, Namespace
from pathlib import Path
from typing import Any

from atoll.cli.arguments import Misuse, Parser
from atoll.cli.options import (
    add_container,
    add_json,
    add_network,
    add_private,
    add_workspace,
    read_assignments,
    read_container,
    read_limits,
    read_network,
    read_workspace,
)

USAGE = "[options] [-- COMMAND …]"
SUMMARY = "Create a sandbox on the node and print its id."
DETAILS = "It lives until 'atoll rm', or until its lifetime is over. A command is its own program."


def add_arguments(parser: Parser) -> None:
    """Say what the command takes."""
    parser.add_argument("--name", help="a name to call it by")
    parser.add_argument("--template", metavar="NAME", help="what it is made from; else python")
    parser.add_argument(
        "--label", metavar="NAME=VALUE", action="append", default=[], help="repeatable"
    )
    parser.add_argument("--memory", metavar="SIZE", help="most memory, such as 256m or 2g")
    parser.add_argument("--cpus", metavar="N", type=float, help="most processors, such as 0.5")
    parser.add_argument("--processes", metavar="N", type=int, help="most processes and threads")
    parser.add_argument("--best-effort", action="store_true", help="accept limits held less well")
    parser.add_argument("--env", metavar="NAME=VALUE", action="append", default=[])
    parser.add_argument("--lifetime", metavar="TIME", help="end it then, such as 2h")
    parser.add_argument("--idle", metavar="TIME", help="end it when unused for so long")
    parser.add_argument("--files", metavar="DIR", type=Path, help="copy what DIR holds into it")
    parser.add_argument("--one-shot", action="store_true", help="end it with its command")
    parser.add_argument("--engine", metavar="NAME", help="one of the node's; else its usual one")
    add_container(parser)
    add_network(parser)
    add_private(parser)
    parser.add_argument(
        "--secret",
        metavar="VARIABLE=NAME",
        action="append",
        default=[],
        help="a stored secret, of which a placeholder is in VARIABLE; repeatable",
    )
    add_workspace(parser)
    parser.add_argument(
        "--remove-workspace", action="store_true", help="have its workspace go with it"
    )
    parser.add_argument(
        "--persistent", action="store_true", help="let it be stopped, and resumed later"
    )
    add_json(parser)
    parser.add_argument("command", nargs=REMAINDER, metavar="COMMAND …")


def execute(options: Namespace) -> int:
    """Create it."""
    body = _read_body(options)
    if options.files is not None and not options.files.is_dir():
        raise Misuse(f"--files {options.files} is not a directory; name one that exists")
    from atoll.cli.creation import create

    return create(body, options.files, as_json=options.json)


def _read_body(options: Namespace) -> dict[str, Any]:
    limits = read_limits(options.memory, options.cpus, options.processes, options.best_effort)
    limits = read_workspace(options, limits)
    if options.remove_workspace and options.workspace is None:
        raise Misuse("--remove-workspace needs --workspace; other workspaces always go")
    # Refused here rather than by the node, if it cannot be.
    network = read_network(options, options.private, options.serve)
    private = {"private": network.private, "ports": list(network.ports)}
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    body = {
        "name": options.name,
        "template": options.template,
        "engine": options.engine,
        "container": read_container(options) or None,
        "labels": read_assignments("--label", options.label),
        "env": read_assignments("--env", options.env),
        "limits": {
            "memory_bytes": limits.memory_bytes,
            "cpus": limits.cpus,
            "processes": limits.processes,
            "workspace_bytes": limits.workspace_bytes,
            "enforcement": "best_effort" if options.best_effort else None,
        },
        "lifetime": options.lifetime,
        "idle": options.idle,
        "command": command or None,
        "one_shot": options.one_shot,
        "workspace": options.workspace,
        "network": options.network
        if network.private is None
        else {"rules": options.network or "none", **private},
        "secrets": read_assignments("--secret", options.secret) or None,
        "remove_workspace": options.remove_workspace or None,
        "persistent": options.persistent or None,
    }
    return {name: value for name, value in body.items() if value is not None}
