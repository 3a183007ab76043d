"""Reading server-sent events as they come, for tests."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

from httpx2 import AsyncClient, AsyncHTTPTransport

from tests.running_node import RunningNode


class SentEvent(NamedTuple):
    """One event, or a comment."""

    id: str | None
    kind: str | None
    data: Any
    comment: str | None = None


@asynccontextmanager
async def read_sse(
    node: RunningNode, path: str, **headers: str
) -> AsyncIterator[AsyncGenerator[SentEvent, None]]:
    """Give the events of a stream, comments included, from its first bytes on."""
    transport = AsyncHTTPTransport(uds=str(node.socket_path))
    async with (
        AsyncClient(transport=transport, base_url="http://node", timeout=60) as client,
        client.stream("GET", path, headers=headers) as answer,
    ):
        if answer.status_code != 200:
            await answer.aread()
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        async with aclosing(_parse(answer.aiter_lines())) as events:
            yield events


async def _parse(lines: AsyncIterator[str]) -> AsyncGenerator[SentEvent, None]:
    fields: dict[str, str] = {}
    async for line in lines:
        name, _, value = line.partition(":")
        if line:
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            data = json.loads(fields["data"])
            yield SentEvent(fields.get("id"), fields.get("event"), data)
            fields = {}
        elif fields:
            yield SentEvent(None, None, None, fields.get(""))
            fields = {}
