"""What `atoll secret` does with the node."""

from __future__ import annotations

import getpass
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

from atoll.cli.nodes import run_on_node
from atoll.cli.tables import print_table, show_instant
from atoll.client.http import HttpNode
from atoll.model.secret import Secret, check_secret_name

_HEADINGS = ("NAME", "HOSTS", "PLACE", "CHANGED", "LAST USED")


def set_secret(options: Namespace) -> int:
    """Read a value and store it."""
    (name,) = options.names
    check_secret_name(name)
    # Refused here rather than by the node, if it cannot be.
    secret = Secret(
        _read_value(name),
        options.host,
        header=options.header,
        query=options.query,
        body=options.body,
        template=options.template,
    )
    body = {
        "value": secret.value,
        "hosts": list(secret.hosts),
        "header": secret.header,
        "query": secret.query,
        "body": secret.body,
        "template": secret.template,
    }
    return run_on_node(partial(_set, name, body, options.json))


def show_secrets(*, as_json: bool) -> int:
    """Print which there are."""
    return run_on_node(partial(_show, as_json))


def remove_secrets(names: Sequence[str], *, as_json: bool) -> int:
    """Remove secrets, and print which."""
    for name in names:
        check_secret_name(name)
    return run_on_node(partial(_remove, names, as_json))


def rotate_key(*, as_json: bool) -> int:
    """Have all secrets sealed with a new key."""
    return run_on_node(partial(_rotate, as_json))


def _read_value(name: str) -> str:
    if sys.stdin.isatty():
        return getpass.getpass(f"value of {name}: ")
    # The line end is what `echo` adds, and what no secret holds.
    return sys.stdin.read().removesuffix("\n").removesuffix("\r")


async def _set(name: str, body: dict[str, Any], as_json: bool, node: HttpNode) -> int:
    stored = await node.call("PUT", f"/secrets/{name}", body=body)
    print(json.dumps(stored) if as_json else name, flush=True)
    return 0


async def _show(as_json: bool, node: HttpNode) -> int:
    secrets = await node.call("GET", "/secrets")
    if as_json:
        print(json.dumps(secrets), flush=True)
    else:
        print_table([_HEADINGS, *map(_row, secrets)])
    return 0


async def _remove(names: Sequence[str], as_json: bool, node: HttpNode) -> int:
    for name in names:
        await node.call("DELETE", f"/secrets/{name}")
    print(json.dumps(list(names)) if as_json else "\n".join(names), flush=True)
    return 0


async def _rotate(as_json: bool, node: HttpNode) -> int:
    answer = await node.call("POST", "/secrets/rotate")
    shown = f"{answer['sealed']} secrets are sealed with a new key"
    print(json.dumps(answer) if as_json else shown, flush=True)
    return 0


def _row(secret: dict[str, Any]) -> Sequence[str]:
    place = f"{secret['place']} {secret['field']}"
    times = (show_instant(secret[name]) for name in ("changed_at", "last_used_at"))
    return (secret["name"], ", ".join(secret["hosts"]), place, *times)
