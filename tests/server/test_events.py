"""What happens to sandboxes is told to whoever follows it, in order, and can be followed again after a break."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from atoll.client.http import HttpNode
from atoll.errors import InvalidRequest, Unsupported
from atoll.model.ids import SandboxId
from atoll.model.limits import Limits, LimitsInfo
from atoll.model.sandbox import SandboxInfo, SandboxState
from atoll.node.hooks import SandboxChange, SandboxChanged, SandboxCreated
from atoll.server.feed import MOST_KEPT, Feed, FeedEvent
from tests.cli.conftest import why_not
from tests.running_node import RunningNode, running_node
from tests.server.sse import SentEvent, read_sse


async def next_about(events: AsyncGenerator[SentEvent, None], sandbox: str) -> SentEvent:
    """Return the next event about a sandbox; other tests have theirs."""
    with anyio.fail_after(60):
        async for event in events:
            if event.comment is None and event.data["container_id"] == sandbox:
                return event
    raise AssertionError("the stream ended")


async def test_a_sandboxs_life_is_told(client: HttpNode, node: RunningNode) -> None:
    async with read_sse(node, "/events") as events:
        assert (await anext(events)).comment == "connected"
        made = await client.call("POST", "/sandboxes", body={"template": "base", "label": "a"})
        path = f"/sandboxes/{made['id']}"
        started = await next_about(events, made["id"])
        # No name of its own: pages that only know messages hear it.
        assert started.kind is None
        assert started.data["type"] == "container_started"
        assert started.data["timestamp"].endswith("Z")
        assert started.data["data"]["label"] == "a"
        await client.call("PATCH", path, body={"label": "b", "public": True})
        updated = (await next_about(events, made["id"])).data
        assert updated["type"] == "sandbox_updated"
        assert (updated["data"]["label"], updated["data"]["public"]) == ("b", True)
        await client.call("DELETE", path)
        stopped = (await next_about(events, made["id"])).data
        assert stopped["type"] == "container_stopped"
        assert stopped["data"] == {"reason": "asked", "delete_reason": "user_deleted"}


async def test_pauses_are_told(client: HttpNode, node: RunningNode, sandbox: str) -> None:
    async with read_sse(node, "/events") as events:
        await anext(events)
        try:
            await client.call("PUT", f"/sandboxes/{sandbox}/pause")
        except Unsupported as error:
            pytest.skip(error.message)
        await client.call("DELETE", f"/sandboxes/{sandbox}/pause")
        kinds = [(await next_about(events, sandbox)).data["type"] for _ in range(2)]
    assert kinds == ["sandbox_paused", "sandbox_unpaused"]


@pytest.mark.parametrize("way", ["header", "query"])
async def test_a_break_loses_nothing(
    client: HttpNode, node: RunningNode, sandbox: str, way: str
) -> None:
    path = f"/sandboxes/{sandbox}"
    async with read_sse(node, "/events") as events:
        await anext(events)
        await client.call("PATCH", path, body={"label": "seen"})
        seen = await next_about(events, sandbox)
    await client.call("PATCH", path, body={"label": "missed"})
    assert seen.id is not None
    address = "/events" if way == "header" else f"/events?after={seen.id}"
    headers = {"Last-Event-ID": seen.id} if way == "header" else {}
    async with read_sse(node, address, **headers) as events:
        assert (await next_about(events, sandbox)).data["data"]["label"] == "missed"


async def test_what_an_earlier_node_told_is_missed(node: RunningNode) -> None:
    async with read_sse(node, "/events", **{"Last-Event-ID": "00000000.5"}) as events:
        await anext(events)
        event = await anext(events)
    assert event.data["type"] == "events_missed"
    assert event.data["data"] == {"missed": None}


@pytest.mark.parametrize("odd", ["nonsense", "1", "x.-1", "x.y", f"x.{'9' * 20}"])
async def test_what_is_no_event_is_refused(client: HttpNode, odd: str) -> None:
    with pytest.raises(InvalidRequest, match="event"):
        await client.call("GET", "/events", headers={"Last-Event-ID": odd})


def an_info(owner: str = "me", **fields: Any) -> SandboxInfo:
    limits = LimitsInfo(Limits().resolve(), {})
    return SandboxInfo(
        SandboxId("a" * 26), "fake", "base", SandboxState.RUNNING, limits, owner=owner, **fields
    )


async def take(feed: Feed, owner: str, place: int, count: int) -> list[FeedEvent]:
    found: list[FeedEvent] = []
    async with aclosing(feed.follow(owner, place, lambda: False)) as events:
        async for event in events:
            if event is None:
                break
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_who_is_too_slow_is_told_what_he_missed() -> None:
    feed = Feed()
    place = feed.place("me", None)
    for _ in range(MOST_KEPT + 10):
        await feed.tell(SandboxCreated(an_info()))
    told = await take(feed, "me", place, MOST_KEPT + 1)
    assert (told[0].type, told[0].data) == ("events_missed", {"missed": 10})
    assert len(told) == MOST_KEPT + 1
    # From the notice on, too, nothing is told twice.
    again = await take(feed, "me", feed.place("me", told[0].id), MOST_KEPT + 1)
    assert again == told[1:]


async def test_nobody_hears_of_what_is_anothers() -> None:
    feed = Feed()
    place = feed.place("you", None)
    await feed.tell(SandboxCreated(an_info("me")))
    await feed.tell(SandboxChanged(an_info("you"), SandboxChange.PAUSED))
    (event,) = await take(feed, "you", place, 2)
    assert (event.type, event.id.endswith(".1")) == ("sandbox_paused", True)


async def test_a_node_that_ends_does_not_wait_for_its_readers() -> None:
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_node() as node:
        async with node.client() as client:
            made = await client.call("POST", "/sandboxes", body={"template": "base"})
        watch = f"/sandboxes/{made['id']}/watch"
        async with read_sse(node, "/events") as events, read_sse(node, watch) as changes:
            await anext(events)
            await anext(changes)
            node.process.send_signal(signal.SIGTERM)
            with anyio.fail_after(60):
                assert [event async for event in events if event.comment is None] == []
                assert [event async for event in changes] == []
        assert node.stop() == 0
        assert not [each for each in node.events() if each["event"] == "node.cuts_off"]
