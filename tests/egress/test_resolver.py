"""Names by this machine's own resolver."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from atoll.egress import resolver as resolver_module
from atoll.egress.refusals import DialFailed
from atoll.egress.resolver import Resolver
from atoll.model.hosts import Address, Host, parse_host


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    resolver = Resolver(threads=2)
    yield resolver
    resolver.close()


async def test_the_machine_resolves_what_it_knows(resolver: Resolver) -> None:
    assert ip_address("127.0.0.1") in await resolver.resolve(Host("localhost"))


async def test_an_unknown_name_is_a_failure(resolver: Resolver) -> None:
    with pytest.raises(DialFailed, match="nowhere"):
        await resolver.resolve(Host("nowhere.invalid"))


async def test_a_literal_address_is_not_asked_for(resolver: Resolver) -> None:
    host = parse_host("[2001:db8::7]")
    assert await resolver.resolve(host) == (host.address,)


async def test_one_who_leaves_does_not_end_the_lookup_of_others(resolver: Resolver) -> None:
    leaving = asyncio.create_task(resolver.resolve(Host("localhost")))
    staying = asyncio.create_task(resolver.resolve(Host("localhost")))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying


async def test_no_asker_takes_all_threads(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that wait for a silent name server count for whoever asked, however long ago he left."""
    silence = threading.Event()

    def answer(name: str) -> tuple[Address, ...]:
        if name.startswith("silent"):
            silence.wait()
        return (ip_address("192.0.2.1"),)

    monkeypatch.setattr(resolver_module, "_system_addresses", answer)
    monkeypatch.setattr(resolver_module, "_SECONDS", 0.05)
    wide = Resolver(threads=3)
    try:
        for number in range(2):
            with pytest.raises(DialFailed, match="in time"):
                await wide.resolve(Host(f"silent{number}.example"), (), "greedy")
        with pytest.raises(DialFailed, match="too many"):
            await wide.resolve(Host("quick.example"), (), "greedy")
        monkeypatch.setattr(resolver_module, "_SECONDS", 60)
        assert await wide.resolve(Host("quick.example"), (), "modest")
    finally:
        silence.set()
        wide.close()
