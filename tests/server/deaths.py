"""Deaths of sandboxes, as clients of a node hear of them."""

from __future__ import annotations

from typing import Any

import anyio

from atoll.client.http import HttpNode


async def wait_dead(client: HttpNode, sandbox: str) -> dict[str, Any]:
    """Return what the node tells of a sandbox once that is dead."""
    with anyio.fail_after(60):
        while True:
            info: dict[str, Any] = await client.call("GET", f"/sandboxes/{sandbox}")
            if info["deleted_at"] is not None:
                return info
            await anyio.sleep(0.02)
