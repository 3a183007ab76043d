"""Bodies that are sent as they come: events as NDJSON or SSE, and bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from atoll.errors import InvalidRequest
from atoll.model.execution import ExecutionEvent, event_to_json

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"


class Stream(StreamingResponse):
    """An answer that is made while it is sent; if its reader goes away, whatever makes it is closed at once."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> None:
        super().__init__(chunks, status, headers, media_type)
        self._chunks = chunks

    async def begun(self) -> Stream:
        """Return this answer with its first chunk made, so that what fails at once can still be refused."""
        first = await anext(self._chunks, b"")
        self.body_iterator = _joined(first, self._chunks)
        return self

    async def stream_response(self, send: Send) -> None:
        """Send everything."""
        async with aclosing(self._chunks):
            await super().stream_response(send)


async def _joined(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield first
    async for chunk in rest:
        yield chunk


def stream_events(
    request: Request,
    events: AsyncGenerator[ExecutionEvent, None],
    headers: Mapping[str, str] | None = None,
    status: int = 200,
) -> Stream:
    """Return an answer with one event per line, or as server-sent events if the caller prefers those."""
    if _prefers_sse(request):
        unbuffered = {"Cache-Control": "no-store", **(headers or {})}
        return Stream(_encode(events, to_sse), SSE, unbuffered, status)
    return Stream(_encode(events, to_line), NDJSON, headers, status)


def answer_events(
    request: Request,
    events: Sequence[ExecutionEvent],
    headers: Mapping[str, str],
    status: int,
) -> Response:
    """Return the same answer of events that are all there."""
    is_sse = _prefers_sse(request)
    content = b"".join(map(to_sse if is_sse else to_line, events))
    if is_sse:
        headers = {"Cache-Control": "no-store", **headers}
    return Response(content, status, headers, SSE if is_sse else NDJSON)


def first_event(request: Request, start: int) -> int:
    """Return the number of the event to begin with: that after the last one which the caller has seen."""
    last = request.headers.get("last-event-id")
    if last is None:
        return start
    if not last.isascii() or not last.isdigit() or len(last) > 15:
        raise InvalidRequest(f"Last-Event-ID {last[:40]!r} is not the number of an event")
    return int(last) + 1


def to_line(event: ExecutionEvent) -> bytes:
    """Return an event as a line of NDJSON."""
    return json.dumps(event_to_json(event)).encode() + b"\n"


def to_sse(event: ExecutionEvent) -> bytes:
    """Return an event as a server-sent event whose id is its number."""
    return sse_event(event_to_json(event), kind=event.type.value, event_id=str(event.seq))


def sse_event(
    data: Mapping[str, Any], *, kind: str | None = None, event_id: str | None = None
) -> bytes:
    """Return a server-sent event, in ASCII and on one line, whatever it holds; without `kind` browsers call it a message."""
    fields = {"id": event_id, "event": kind, "data": json.dumps(data)}
    lines = [f"{name}: {value}\n" for name, value in fields.items() if value is not None]
    return f"{''.join(lines)}\n".encode()


def sse_comment(text: str) -> bytes:
    """Return what shows that a stream of server-sent events still lives."""
    return f": {text}\n\n".encode()


async def _encode(
    events: AsyncGenerator[ExecutionEvent, None], encode: Callable[[ExecutionEvent], bytes]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            yield encode(event)


def _prefers_sse(request: Request) -> bool:
    return SSE in request.headers.get("accept", "")
