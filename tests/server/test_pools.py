"""Sandboxes that a server has ready: the operator's for everybody, and each owner's for himself alone."""

from __future__ import annotations

import re
from collections.abc import Callable

import anyio
import pytest

from atoll import AsyncSandbox
from atoll.errors import InvalidRequest, LimitExceeded
from atoll.model.access import Scope
from tests.server.serving import Served, serving

pytestmark = [pytest.mark.timeout(300), pytest.mark.any_user]
BASE = {"template": "base"}


async def eventually(true: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not true():
            await anyio.sleep(0.01)


def new_token(served: Served, name: str) -> str:
    return served.add_token(served.add_user(name))[1]


async def test_what_the_operator_keeps_ready_goes_to_whoever_asks_for_it() -> None:
    async with serving(engine="namespaces", pools={"ready": ["base=1", "python=1"]}) as served:
        pool = served.parts.node.pool
        await eventually(lambda: len(pool.ready()) == 2)
        base, python = pool.ready()
        token = new_token(served, "bob")
        made = await AsyncSandbox.create(url=served.url, token=token)
        assert python not in pool.ready() and base in pool.ready()
        assert (await made.run_code("6 * 7")).text == "42"
        async with served.client(token) as client:
            await client.call("POST", "/sandboxes", body={**BASE, "env": {"A": "1"}})
            assert base in pool.ready()
            told = await client.call("POST", "/sandboxes", body=BASE)
            assert base not in pool.ready()
            assert base.info.id == told["id"]
            # Whose they were made for is told to nobody else.
            assert await client.call("GET", "/pools") == []
        assert await counted(served, "hits_total") == 2
        await eventually(lambda: len(pool.ready()) == 2)


async def counted(served: Served, name: str) -> int:
    _, admin = served.add_token(served.admin, Scope.ADMIN)
    async with served.browser(admin) as browser:
        text = (await browser.get("/metrics")).text
    found = re.search(rf'^atoll_pool_{name}\{{engine="namespaces"\}} (\d+)$', text, re.MULTILINE)
    return 0 if found is None else int(found[1])


async def test_a_user_keeps_some_for_himself() -> None:
    async with serving(engine="namespaces", pools={"most_ready_per_owner": 3}) as served:
        pool, ada, bob = served.parts.node.pool, new_token(served, "ada"), new_token(served, "bob")
        await AsyncSandbox.warm(2, url=served.url, token=ada)
        first, second = pool.ready()
        async with AsyncSandbox(url=served.url, token=bob) as strangers:
            assert pool.ready() == [first, second]
            assert strangers.id not in (first.info.id, second.info.id)
        async with AsyncSandbox(url=served.url, token=ada) as own:
            assert first.info.id == own.id
            assert (await own.run_code("6 * 7")).text == "42"
        async with served.client(ada) as client:
            (told,) = await client.call("GET", "/pools")
            assert (told["engine"], told["template"], told["wanted"]) == ("namespaces", "python", 2)
        with pytest.raises(LimitExceeded, match="the most, 3"):
            await AsyncSandbox.warm(2, "base", url=served.url, token=ada)
        await AsyncSandbox.warm(0, url=served.url, token=ada)
        assert pool.ready() == []
        assert await counted(served, "ready") == 0


async def test_ready_ones_are_bounded_by_the_quota_and_give_way() -> None:
    async with serving(engine="namespaces", quotas={"most_per_owner": 3}) as served:
        pool, token = served.parts.node.pool, new_token(served, "ada")
        with pytest.raises(LimitExceeded, match="3 of 4 sandboxes are ready"):
            await AsyncSandbox.warm(4, "base", url=served.url, token=token)
        async with served.client(token) as client:
            for _ in range(3):
                await client.call("POST", "/sandboxes", body={**BASE, "env": {"A": "1"}})
            with pytest.raises(LimitExceeded):
                await client.call("POST", "/sandboxes", body=BASE)
        await eventually(lambda: not pool.ready())


async def test_those_that_their_owner_does_not_come_for_are_destroyed() -> None:
    async with serving(engine="namespaces", pools={"most_ready_idle_seconds": 1}) as served:
        token = new_token(served, "ada")
        await AsyncSandbox.warm(1, "base", idle="1h", url=served.url, token=token)
        await eventually(lambda: not served.parts.node.pool.ready())


async def test_what_cannot_be_made_ahead_is_refused() -> None:
    async with serving(engine="namespaces") as served, served.client(new_token(served, "a")) as ada:
        for sandbox, reason in (
            ({"network": "open"}, "network"),
            ({"template": "nobody-built-this"}, "no template"),
            ({"engine": "docker"}, "none of this node's"),
        ):
            with pytest.raises(InvalidRequest, match=reason):
                await ada.call("PUT", "/pools", body={"count": 1, "sandbox": sandbox})
        with pytest.raises(InvalidRequest, match="0 to 1000"):
            await ada.call("PUT", "/pools", body={"count": -1, "sandbox": BASE})
        assert await ada.call("GET", "/pools") == []
