"""What `atoll token` does with the node."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from atoll.cli.messages import notice
from atoll.cli.nodes import run_on_node
from atoll.cli.tables import print_table, show_instant
from atoll.client.http import HttpNode

_HEADINGS = ("ID", "NAME", "KIND", "SCOPE", "CREATED", "LAST USED", "EXPIRES", "STATE")


def create_token(options: Namespace) -> int:
    """Make a token and print it, this once."""
    body = {
        "scope": options.scope or ("member" if options.sandbox is None else "sandbox"),
        "name": options.name or "",
        "sandbox": options.sandbox,
        "expires_in": options.expires,
        "user": options.user,
    }
    return run_on_node(partial(_create, body, options.json))


def show_tokens(user: str | None, *, as_json: bool) -> int:
    """Print which there are."""
    return run_on_node(partial(_show, user, as_json))


def revoke_tokens(ids: Sequence[str], *, as_json: bool) -> int:
    """Make tokens void, and print which."""
    return run_on_node(partial(_revoke, ids, as_json))


async def _create(body: dict[str, Any], as_json: bool, node: HttpNode) -> int:
    made = await node.call("POST", "/tokens", body=body)
    if not as_json:
        notice(f"token {made['id']} of scope {made['scope']}; it is not shown again")
    print(json.dumps(made) if as_json else made["token"], flush=True)
    return 0


async def _show(user: str | None, as_json: bool, node: HttpNode) -> int:
    tokens = await node.call("GET", "/tokens", params={"user": user})
    if as_json:
        print(json.dumps(tokens), flush=True)
    else:
        print_table([_HEADINGS, *map(_row, tokens)])
    return 0


async def _revoke(ids: Sequence[str], as_json: bool, node: HttpNode) -> int:
    for each in ids:
        await node.call("DELETE", f"/tokens/{quote(each, safe='')}")
    print(json.dumps(list(ids)) if as_json else "\n".join(ids), flush=True)
    return 0


def _row(token: dict[str, Any]) -> Sequence[str]:
    scope = token["scope"]
    if token["sandbox"] is not None:
        scope = f"{scope} {token['sandbox']}"
    times = (show_instant(token[name]) for name in ("created_at", "last_used_at", "expires_at"))
    state = "revoked" if token["revoked_at"] is not None else "valid"
    return (token["id"], token["name"] or "-", token["kind"], scope, *times, state)
