"""What happens to sandboxes, told to those who follow it: a feed for each owner, fed by the node's hooks.

A reader has nothing of its own but its place in its owner's feed, so a slow one costs nothing. Of a feed the newest events are
kept; who is behind them is told how many it missed, and goes on with what there is.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from atoll.errors import InvalidRequest
from atoll.model.sandbox import SandboxInfo
from atoll.node.hooks import (
    Happening,
    SandboxChange,
    SandboxChanged,
    SandboxCreated,
    SandboxDestroyed,
)
from atoll.server.answers import delete_reason
from atoll.server.labels import LABEL, PUBLIC

MOST_KEPT = 1000
MISSED = "events_missed"
# How soon a reader to whom nothing is told notices that the node is to end.
_LOOK_SECONDS = 0.5
_EPOCH_BYTES = 4
_TYPES = {
    SandboxChange.PAUSED: "sandbox_paused",
    SandboxChange.RESUMED: "sandbox_unpaused",
    SandboxChange.STOPPED: "sandbox_stopped",
    SandboxChange.UPDATED: "sandbox_updated",
}


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One thing that happened; its id says where in the feed it is."""

    id: str
    type: str
    container_id: str | None
    timestamp: float
    data: Mapping[str, Any]


@dataclass(slots=True)
class _OwnersFeed:
    count: int = 0  # of all that there were
    kept: deque[FeedEvent] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    news: anyio.Event = field(default_factory=anyio.Event)


class Feed:
    """The feeds of all owners of a node. It lasts as long as the node: an id of an earlier one is behind everything."""

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(_EPOCH_BYTES)
        self._feeds: dict[str, _OwnersFeed] = {}

    async def tell(self, happening: Happening) -> None:
        """Take what a hook is told."""
        match happening:
            case SandboxCreated(sandbox):
                self._add(sandbox, "container_started", _looks(sandbox))
            case SandboxDestroyed(sandbox):
                ended = {"reason": sandbox.reason, "delete_reason": delete_reason(sandbox)}
                self._add(sandbox, "container_stopped", ended)
            case SandboxChanged(sandbox, change):
                self._add(sandbox, _TYPES[change], _looks(sandbox))
            case _:
                return

    def place(self, owner: str, after: str | None) -> int:
        """Return where to go on after the event of that id: now, if there is none; raise `InvalidRequest` for what is no id."""
        count = self._feed(owner).count
        if after is None:
            return count
        epoch, dot, number = after.partition(".")
        if not (dot and number.isascii() and number.isdigit() and len(number) < 16):
            raise InvalidRequest(f"{after[:40]!r} is not the id of an event; leave it out")
        # Nobody can have seen what has not happened yet.
        return min(int(number), count) if epoch == self._epoch else -1

    async def follow(
        self, owner: str, place: int, is_over: Callable[[], bool]
    ) -> AsyncGenerator[FeedEvent | None, None]:
        """Yield what happens to an owner's sandboxes from a place on, and None whenever nothing has for a moment."""
        feed = self._feed(owner)
        while not is_over():
            oldest = feed.count - len(feed.kept)
            if place < oldest:
                yield self._missed(oldest, oldest - place if place >= 0 else None)
                place = oldest
            elif place < feed.count:
                yield feed.kept[place - oldest]
                place += 1
            else:
                with anyio.move_on_after(_LOOK_SECONDS):
                    await feed.news.wait()
                    continue
                yield None

    def _feed(self, owner: str) -> _OwnersFeed:
        return self._feeds.setdefault(owner, _OwnersFeed())

    def _add(self, sandbox: SandboxInfo, kind: str, data: Mapping[str, Any]) -> None:
        feed = self._feed(sandbox.owner)
        feed.count += 1
        feed.kept.append(FeedEvent(self._id(feed.count), kind, sandbox.id, time.time(), data))
        feed.news.set()
        feed.news = anyio.Event()

    def _missed(self, place: int, count: int | None) -> FeedEvent:
        return FeedEvent(self._id(place), MISSED, None, time.time(), {"missed": count})

    def _id(self, number: int) -> str:
        return f"{self._epoch}.{number}"


def _looks(sandbox: SandboxInfo) -> Mapping[str, Any]:
    return {
        "name": sandbox.name or sandbox.id,
        "label": sandbox.labels.get(LABEL),
        "public": PUBLIC in sandbox.labels,
        "status": sandbox.state.value,
    }
