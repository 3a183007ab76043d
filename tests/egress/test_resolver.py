"""Names by this machine's own resolver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from atoll.egress.refusals import DialFailed
from atoll.egress.resolver import Resolver
from atoll.model.hosts import Host, parse_host


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
