"""What happens to the caller's sandboxes, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse

from atoll.server.answers import timestamp
from atoll.server.auth import Owner
from atoll.server.feed import FeedEvent
from atoll.server.json_bodies import JsonRoute
from atoll.server.parts import Here
from atoll.server.streams import SSE, Stream, sse_comment, sse_event

router = APIRouter(tags=["events"], route_class=JsonRoute)
HEARTBEAT_SECONDS = 10.0
# For callers and for what may stand between: nothing of it is kept, and nothing held back.
UNBUFFERED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
SSE_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": {SSE: {}}}}
EventId = Annotated[str | None, Header(alias="Last-Event-ID")]
After = Annotated[str | None, Query(max_length=40)]


@router.get("/events", response_model=None, response_class=StreamingResponse, responses=SSE_ANSWER)
async def follow_events(
    parts: Here, owner: Owner, last_event_id: EventId = None, after: After = None
) -> Stream:
    """Send what happens to the caller's sandboxes from now on, or after the event of an id: `Last-Event-ID`, or `after`.

    Each has `type`, `container_id`, `timestamp` and `data`: `container_started`, `container_stopped`, `sandbox_paused`,
    `sandbox_unpaused`, `sandbox_stopped`, `sandbox_updated`. `events_missed` tells that some are no longer there, or are of an earlier node.
    """
    place = parts.feed.place(owner, last_event_id or after)
    events = parts.feed.follow(owner, place, lambda: parts.traffic.is_draining)
    return Stream(_encode(events), SSE, UNBUFFERED)


async def _encode(
    events: AsyncGenerator[FeedEvent | None, None],
) -> AsyncGenerator[bytes, None]:
    # At once, so that the other side knows that it is heard.
    yield sse_comment("connected")
    last = anyio.current_time()
    async with aclosing(events):
        async for event in events:
            if event is not None:
                yield sse_event(_to_json(event), event_id=event.id)
            elif anyio.current_time() < last + HEARTBEAT_SECONDS:
                continue
            else:
                yield sse_comment("heartbeat")
            last = anyio.current_time()


def _to_json(event: FeedEvent) -> dict[str, Any]:
    return {
        "type": event.type,
        "container_id": event.container_id,
        "timestamp": timestamp(event.timestamp),
        "data": dict(event.data),
    }
