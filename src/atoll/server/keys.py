"""The header `Idempotency-Key`: what it lets happen only once, and how a repeated answer is marked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Annotated

from fastapi import Depends, Header
from starlette.requests import HTTPConnection

from atoll.model.ids import ExecutionId, new_execution_id
from atoll.node.idempotency import Answer, KeyedRequest
from atoll.node.records import IdempotencyRecord
from atoll.server.auth import find_known
from atoll.server.parts import Parts


async def find_key_holder(connection: HTTPConnection) -> str:
    """Return to whom a caller's keys mean something: all that a user has is one space, but for tokens that see one sandbox.

    Else the holder of such a token could tell which keys its user has used elsewhere, and use up others.
    """
    caller = await find_known(connection)
    # No owner has a slash in his name.
    return caller.owner if caller.sandbox is None else f"{caller.owner}/{caller.sandbox}"


KeyHolder = Annotated[str, Depends(find_key_holder)]
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key")]
# Said by a caller who never sent this request before: then it need not be looked for in what earlier nodes have written down.
FirstTry = Annotated[bool, Header(alias="Atoll-First-Try")]
REPLAYED: Mapping[str, str] = MappingProxyType({"Idempotent-Replay": "true"})


async def start_execution_once(
    parts: Parts,
    start: Callable[[ExecutionId, IdempotencyRecord | None], Awaitable[None]],
    request: KeyedRequest | None,
    *,
    is_new: bool = False,
) -> Answer:
    """Let `start` begin an execution under a new id, and write the key down with it; of requests with a key only the first one."""
    execution_id = new_execution_id()
    if request is None:
        await start(execution_id, None)
        return Answer(execution_id)
    return await parts.idempotency.once(
        request,
        execution_id,
        lambda key: start(execution_id, key),
        parts.has_execution,
        is_new=is_new,
        keeps_key=True,
    )
