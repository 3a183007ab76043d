"""Who asks: what a proxy says is believed only if it is ours, and only as far as it saw it."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.server.addresses import find_address, is_loopback, network_of

pytestmark = pytest.mark.any_user
PROXIES = ("127.0.0.1", "10.0.0.1")


def scope(client: str, *forwarded: str) -> dict[str, Any]:
    headers = [(b"x-forwarded-for", each.encode()) for each in forwarded]
    return {"type": "http", "client": (client, 1), "headers": headers}


@pytest.mark.parametrize(
    ("client", "forwarded", "expected"),
    [
        ("192.0.2.1", (), "192.0.2.1"),
        ("192.0.2.1", ("198.51.100.7",), "192.0.2.1"),  # a stranger says so
        ("127.0.0.1", (), "127.0.0.1"),
        ("127.0.0.1", ("198.51.100.7",), "198.51.100.7"),
        ("127.0.0.1", ("1.1.1.1, 198.51.100.7",), "198.51.100.7"),  # the first is his invention
        ("127.0.0.1", ("1.1.1.1", "198.51.100.7"), "198.51.100.7"),
        ("127.0.0.1", ("198.51.100.7, 10.0.0.1",), "198.51.100.7"),
        ("127.0.0.1", ("not an address",), "127.0.0.1"),
        ("127.0.0.1", ("",), "127.0.0.1"),
    ],
)
def test_whose_request_it_is(client: str, forwarded: tuple[str, ...], expected: str) -> None:
    assert find_address(scope(client, *forwarded), PROXIES) == expected


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("unknown", "unknown"),
    ],
)
def test_who_is_one_and_the_same(address: str, network: str) -> None:
    assert network_of(address) == network


def test_what_only_this_machine_reaches() -> None:
    assert all(is_loopback(each) for each in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    beyond = ("0.0.0.0", "::", "192.0.2.1", "example.org", "localhost.example.org")
    assert not any(is_loopback(each) for each in beyond)
