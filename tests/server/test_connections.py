"""How many connections there may be, of one address and together."""

from __future__ import annotations

import asyncio

import pytest

from atoll.server.connections import ConnectionCaps, Connections
from atoll.server.errors import Refusal

pytestmark = pytest.mark.any_user


def test_one_address_leaves_room_for_others() -> None:
    connections = Connections(ConnectionCaps(all=5, per_address=2))
    first = asyncio.Transport()
    connections.enter(first, "192.0.2.1")
    connections.enter(asyncio.Transport(), "192.0.2.1")
    with pytest.raises(Refusal, match=r"2 connections of 192\.0\.2\.1"):
        connections.enter(asyncio.Transport(), "192.0.2.1")
    connections.enter(asyncio.Transport(), "192.0.2.2")
    connections.leave(first)
    connections.leave(first)
    connections.enter(asyncio.Transport(), "192.0.2.1")
    assert len(connections) == 3


def test_there_is_an_end_to_all() -> None:
    connections = Connections(ConnectionCaps(all=2, per_address=2))
    for number in range(2):
        connections.enter(asyncio.Transport(), f"192.0.2.{number}")
    with pytest.raises(Refusal, match="2 connections are open"):
        connections.enter(asyncio.Transport(), "192.0.2.9")


def test_a_proxy_stands_for_many() -> None:
    connections = Connections(ConnectionCaps(all=3, per_address=1, trusted=("127.0.0.1",)))
    for _ in range(3):
        connections.enter(asyncio.Transport(), "127.0.0.1")
    assert len(connections) == 3


def test_whoever_left_is_forgotten() -> None:
    connections = Connections(ConnectionCaps(all=10, per_address=1))
    for number in range(1000):
        transport = asyncio.Transport()
        connections.enter(transport, f"192.0.2.{number % 250}")
        connections.leave(transport)
    assert (len(connections), len(connections._counts)) == (0, 0)
