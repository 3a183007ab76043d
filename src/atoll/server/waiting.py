"""Waiting for an execution on behalf of somebody who may go away."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from starlette.requests import ClientDisconnect, Request

from atoll.model.execution import EventType, ExecutionEvent
from atoll.model.ids import ExecutionId
from atoll.node.execution import Execution
from atoll.node.task_groups import single_errors
from atoll.server.bodies import OnDisconnect
from atoll.server.parts import Parts
from atoll.server.results import Gathered

# How long whoever waits is not looked after: that he left is noticed so much later.
_SOON_SECONDS = 0.05


async def follow_for(
    parts: Parts, execution_id: ExecutionId, on_disconnect: OnDisconnect | None, start: int = 0
) -> AsyncGenerator[ExecutionEvent, None]:
    """Yield all events from number `start` on; if this is closed before the end, the execution is cancelled where that was asked for."""
    on_disconnect = on_disconnect or parts.settings.execution.on_disconnect
    has_ended = False
    try:
        async with aclosing(parts.executions.follow(execution_id, start)) as events:
            async for event in events:
                has_ended = event.type is EventType.END
                yield event
    finally:
        # A node that ends cuts its readers off, too; that is not their doing.
        if not has_ended and on_disconnect == "cancel" and not parts.traffic.is_draining:
            with anyio.CancelScope(shield=True):
                await parts.cancel(execution_id)


async def gather_ended(parts: Parts, execution: Execution) -> Gathered:
    """Return what came of an execution that has ended."""
    gathered = Gathered(parts.settings.execution.result_bytes)
    async with aclosing(execution.log.follow_batches()) as batches:
        async for events in batches:
            gathered.take(events)
    return gathered


async def gather_for(
    request: Request, parts: Parts, execution_id: ExecutionId, on_disconnect: OnDisconnect | None
) -> Gathered:
    """Wait for the end and return what came of it; raise `ClientDisconnect` once nobody waits for that."""
    # To look after somebody who may leave costs more than most cells.
    ended = await parts.executions.ended_within(execution_id, _SOON_SECONDS)
    if ended is not None:
        return await gather_ended(parts, ended)
    gathered = Gathered(parts.settings.execution.result_bytes)
    is_complete = False
    with single_errors():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_leave_with_client, request, tasks.cancel_scope)
            async with aclosing(follow_for(parts, execution_id, on_disconnect)) as events:
                await gathered.take_all(events)
            is_complete = True
            tasks.cancel_scope.cancel()
    if not is_complete:
        raise ClientDisconnect
    return gathered


async def _leave_with_client(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
