"""How much of requests is held in memory at one time."""

from __future__ import annotations

import pytest
from starlette.types import Message, Receive, Scope, Send

from atoll.model.access import ADMIN_ID, Caller, Role, Way
from atoll.model.access import Scope as TokenScope
from atoll.server import bounds
from atoll.server.bounds import Bounds
from atoll.server.errors import Refusal

pytestmark = pytest.mark.any_user


def asked_by(owner: str) -> Scope:
    caller = Caller(ADMIN_ID, TokenScope.MEMBER, Way.TOKEN, Role.ADMIN)
    state = {"caller": caller} if owner == ADMIN_ID else {"caller": None, "network": owner}
    return {"type": "http", "method": "POST", "path": "/sandboxes", "headers": [], "state": state}


async def send_nothing(_message: Message) -> None:
    return


class Held:
    """An application that reads a body of 60 bytes, and has another request meanwhile."""

    def __init__(self) -> None:
        self.inner: list[tuple[str, bool]] = []
        self.owners = [ADMIN_ID, "192.0.2.1", ADMIN_ID]
        self.bounds = Bounds(self)

    async def __call__(self, _scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()
        if not self.owners:
            return
        owner = self.owners.pop()
        try:
            await self.ask(owner)
            self.inner.append((owner, True))
        except Refusal as refusal:
            assert refusal.status == 503
            self.inner.append((owner, False))

    async def ask(self, owner: str) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": bytes(60), "more_body": False}

        await self.bounds(asked_by(owner), receive, send_nothing)


async def test_bodies_of_one_owner_and_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_MOST_HELD_EACH", 100)
    monkeypatch.setattr(bounds, "_MOST_HELD", 150)
    held = Held()
    await held.ask(ADMIN_ID)
    # Of the same owner it is too much; of somebody else there is room.
    assert held.inner == [(ADMIN_ID, False)]
    held.owners = ["192.0.2.2", "192.0.2.1"]
    held.inner.clear()
    await held.ask(ADMIN_ID)
    assert held.inner == [("192.0.2.2", False), ("192.0.2.1", True)]
    held.owners, held.inner = [], []
    await held.ask(ADMIN_ID)  # all that was held was let go of
