"""What those who look after a node ask: does it live, can it work, what has it counted."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from atoll.errors import Unavailable
from atoll.server.errors import error_answer
from atoll.server.parts import Here

router = APIRouter(tags=["operation"])
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/health")
async def health() -> dict[str, str]:
    """Say that the node answers."""
    return {"status": "ok"}


@router.get("/ready", response_model=dict[str, Any])
async def ready(parts: Here) -> Any:
    """Say whether the node takes work."""
    if parts.traffic.is_draining:
        return error_answer(Unavailable("this node is ending"))
    if not parts.records.is_healthy:
        return error_answer(Unavailable(f"records cannot be kept: {parts.records.reason}"))
    living, running = len(parts.node.living()), parts.traffic.running
    return {"status": "ok", "sandboxes": living, "requests": running}


@router.get("/metrics")
async def metrics(parts: Here) -> Response:
    """Give all counters in Prometheus's text format."""
    parts.counters.store_up.set(float(parts.records.is_healthy))
    parts.counters.sandboxes_living.set(len(parts.node.living()), parts.settings.node.engine)
    return Response(parts.counters.render(), media_type=_PROMETHEUS)
