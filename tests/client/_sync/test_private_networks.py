# Generated from _async by tools/generate_sync.py; edit that.
"""Sandboxes that talk to each other, from the SDK."""

from __future__ import annotations

import pytest

from atoll import Sandbox
from atoll.errors import InvalidRequest

SERVE = "echo 'hello from db' > page; python3 -m http.server 8000 --bind 127.0.0.1"
ASK = "for i in $(seq 100); do curl -sf --max-time 20 http://db:8000/page && break; sleep 0.1; done"


def test_sandboxes_of_one_network_find_each_other() -> None:
    with (
        Sandbox("base", name="db", private_network="build", ports=[8000]) as db,
        Sandbox("base", private_network="build", network=["api.example"]) as web,
    ):
        db.commands.start(SERVE)
        assert (web.commands.run(ASK)).stdout == b"hello from db\n"
        shown = (db.info()).network
        assert (shown.private, shown.ports, shown.mode) == ("build", (8000,), "none")
        web.set_network(["api.example"])
        refused = web.commands.run("curl -s --max-time 20 http://db:8000/page")
        assert b"not among the hosts" in refused.stdout
        web.set_network("none", private_network="build")
        assert (web.commands.run(ASK)).stdout == b"hello from db\n"


def test_ports_need_a_network_and_a_name() -> None:
    with pytest.raises(InvalidRequest, match="private network"):
        Sandbox(ports=[8000])
    with pytest.raises(InvalidRequest, match="give it one"):
        Sandbox(private_network="build", ports=[8000])
