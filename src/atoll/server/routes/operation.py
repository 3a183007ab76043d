"""What those who look after a node ask: does it live, can it work, what has it counted."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from atoll.errors import Unavailable
from atoll.server.auth import Open, Operator, is_operator
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here

router = APIRouter(tags=["operation"], route_class=JsonRoute)
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class HealthAnswer(BaseModel):
    """A node that answers."""

    ok: bool = True
    status: str = "ok"


class ReadyAnswer(BaseModel):
    """A node that takes work; only those who look after it are told how much it has."""

    status: str = "ok"
    sandboxes: int | None = None
    requests: int | None = None


@router.get("/health")
async def health(_anybody: Open) -> HealthAnswer:
    """Say that the node answers."""
    return HealthAnswer()


@router.get("/ready", response_model_exclude_none=True)
async def ready(parts: Here, caller: Open) -> ReadyAnswer:
    """Say whether the node takes work, and admins how much it has."""
    if parts.traffic.is_draining:
        raise Unavailable("this node is ending")
    if not parts.records.is_healthy:
        # What is wrong with a database is nothing for others.
        reason = f": {parts.records.reason}" if is_operator(caller) else ""
        raise Unavailable(f"records cannot be kept{reason}")
    if not is_operator(caller):
        return ReadyAnswer()
    return ReadyAnswer(sandboxes=len(parts.node.living()), requests=parts.traffic.running)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(parts: Here, _operator: Operator) -> Response:
    """Give all counters in Prometheus's text format."""
    parts.counters.store_up.set(float(parts.records.is_healthy))
    parts.counters.sandboxes_living.set(len(parts.node.living()), parts.settings.node.engine)
    for engine, depth in parts.node.pool.depths().items():
        parts.counters.pool_ready.set(depth, engine)
    return Response(parts.counters.render(), media_type=_PROMETHEUS)
