"""Sandboxes that are paused and destroyed at the same moment: they are gone, and nobody else suffers."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from atoll.engines.namespaces.engine import NamespaceEngine
from atoll.errors import AtollError, Conflict
from atoll.model.process import Command
from atoll.model.sandbox import SandboxSpec, SandboxState
from tests.campaigns import Campaign
from tests.host_state import eventually, new_token, running_with
from tests.http_exchange import ask
from tests.running_server import RunningServer, running_server

pytestmark = pytest.mark.cgroups


@pytest.mark.parametrize("change", ["pause", "resume"])
async def test_whatever_comes_first_it_is_gone(
    engine: NamespaceEngine, campaign: Campaign, change: str
) -> None:
    for _ in range(campaign.count(400)):
        sandbox = await engine.create(SandboxSpec())
        token = new_token()
        await sandbox.start(Command(("sleep", token)))
        if change == "resume":
            await sandbox.pause()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(try_to, getattr(sandbox, change))
                await anyio.sleep(campaign.random.uniform(0, 0.003))
                tasks.start_soon(sandbox.destroy)
        assert sandbox.info.state is SandboxState.DESTROYED
        assert is_gone(token)


async def try_to(change: Callable[[], Awaitable[None]]) -> None:
    try:
        await change()
    except AtollError:
        return  # it was too late


def is_gone(token: str) -> bool:
    return eventually(lambda: not running_with(token), 60)


async def test_a_pause_that_is_under_way_does_not_bring_it_back(
    engine: NamespaceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await engine.create(SandboxSpec())
    token = new_token()
    await sandbox.start(Command(("sleep", token)))
    cgroup: Any = type(sandbox._cgroup)
    freeze, is_frozen, may_go_on = cgroup.freeze, threading.Event(), threading.Event()

    def freeze_slowly(self: object, frozen: bool) -> None:
        freeze(self, frozen)
        if frozen:
            is_frozen.set()
            may_go_on.wait(60)

    monkeypatch.setattr(cgroup, "freeze", freeze_slowly)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def pause() -> None:
                with pytest.raises(Conflict):
                    await sandbox.pause()

            tasks.start_soon(pause)
            await anyio.to_thread.run_sync(is_frozen.wait)
            tasks.start_soon(sandbox.destroy)
            while sandbox.info.state is not SandboxState.DESTROYED:
                await anyio.sleep(0.01)
            may_go_on.set()
    assert sandbox.info.state is SandboxState.DESTROYED
    assert is_gone(token)


async def test_a_server_goes_on_for_others(campaign: Campaign) -> None:
    with running_server() as server:
        for _ in range(campaign.count(200)):
            async with server.client() as client:
                made = (await client.call("POST", "/sandboxes", body={}))["id"]
            statuses: dict[str, int] = {}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, server, "PUT", f"/sandboxes/{made}/pause", statuses)
                await anyio.sleep(campaign.random.uniform(0, 0.01))
                tasks.start_soon(send, server, "DELETE", f"/sandboxes/{made}", statuses)
            assert statuses["DELETE"] == 200
            assert statuses["PUT"] in (204, 404, 409), statuses
        assert not [each for each in server.events() if each["level"] == "error"]


async def send(server: RunningServer, method: str, path: str, statuses: dict[str, int]) -> None:
    answer = await anyio.to_thread.run_sync(partial(ask, server, method, path, token=server.token))
    statuses[method] = answer.status
