"""Sandboxes that talk to each other, from the SDK."""

from __future__ import annotations

import pytest

from atoll import AsyncSandbox
from atoll.errors import InvalidRequest

SERVE = "echo 'hello from db' > page; python3 -m http.server 8000 --bind 127.0.0.1"
ASK = "for i in $(seq 100); do curl -sf --max-time 20 http://db:8000/page && break; sleep 0.1; done"


async def test_sandboxes_of_one_network_find_each_other() -> None:
    async with (
        AsyncSandbox("base", name="db", private_network="build", ports=[8000]) as db,
        AsyncSandbox("base", private_network="build", network=["api.example"]) as web,
    ):
        await db.commands.start(SERVE)
        assert (await web.commands.run(ASK)).stdout == b"hello from db\n"
        shown = (await db.info()).network
        assert (shown.private, shown.ports, shown.mode) == ("build", (8000,), "none")
        await web.set_network(["api.example"])
        refused = await web.commands.run("curl -s --max-time 20 http://db:8000/page")
        assert b"not among the hosts" in refused.stdout
        await web.set_network("none", private_network="build")
        assert (await web.commands.run(ASK)).stdout == b"hello from db\n"


async def test_ports_need_a_network_and_a_name() -> None:
    with pytest.raises(InvalidRequest, match="private network"):
        AsyncSandbox(ports=[8000])
    with pytest.raises(InvalidRequest, match="give it one"):
        AsyncSandbox(private_network="build", ports=[8000])
