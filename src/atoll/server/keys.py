"""The header `Idempotency-Key`: what it lets happen only once, and how a repeated answer is marked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Annotated

from fastapi import Header

from atoll.model.ids import new_execution_id
from atoll.node.idempotency import Answer, KeyedRequest
from atoll.server.parts import Parts

IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key")]
REPLAYED: Mapping[str, str] = MappingProxyType({"Idempotent-Replay": "true"})


async def start_execution_once(
    parts: Parts, start: Callable[[str], Awaitable[None]], request: KeyedRequest | None
) -> Answer:
    """Let `start` begin an execution under a new id; of requests with a key only the first one."""
    execution_id = new_execution_id()
    if request is None:
        await start(execution_id)
        return Answer(execution_id)
    return await parts.idempotency.once(request, execution_id, start, parts.has_execution)
