"""What `atoll create` does once it knows what is wanted."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from atoll.cli.nodes import run_on_node
from atoll.cli.packing import send_tree
from atoll.client.http import HttpNode


def create(body: dict[str, Any], files: Path | None, *, as_json: bool) -> int:
    """Create a sandbox on the node and print it."""
    return run_on_node(partial(_create, body, files, as_json))


async def _create(body: dict[str, Any], files: Path | None, as_json: bool, node: HttpNode) -> int:
    # With a key of its own, so that a connection that breaks can be tried again without a second sandbox.
    sandbox = await node.call(
        "POST", "/sandboxes", body=body, headers={"Idempotency-Key": uuid4().hex}
    )
    if files is not None:
        await _fill(node, sandbox["id"], files)
    print(json.dumps(sandbox) if as_json else sandbox["id"], flush=True)
    return 0


async def _fill(node: HttpNode, sandbox_id: str, files: Path) -> None:
    try:
        await send_tree(node, sandbox_id, files, ".")
    except BaseException:
        await node.call("DELETE", f"/sandboxes/{sandbox_id}")
        raise
