"""Addresses that nobody is taken to, whatever name led there."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.egress.addresses import parse_opened, refusal
from atoll.errors import InvalidRequest
from atoll.model.hosts import Address, Host, parse_host
from tests.egress.spellings import ADDRESS_SPELLINGS, ANSWERS, Answer

pytestmark = pytest.mark.any_user

HOST = Host("index.example")
PUBLIC = (
    "8.8.8.8",
    "1.1.1.1",
    "172.15.0.1",
    "172.32.0.1",
    "100.63.0.1",
    "100.128.0.1",
    "126.0.0.1",
)
PUBLIC_V6 = ("2606:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "2001:200::1", "3ffe::1")
# Here the addresses within decide, which other tests are about.
CARRIERS = [
    ip_network(text)
    for text in (
        "::/96",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "2001::/32",
        "2002::/16",
    )
]
# In each, the IPv4 address that is within decides.
DISGUISES = {
    "mapped": lambda inner: (0xFFFF << 32) | inner,
    "translated": lambda inner: (0xFFFF << 48) | inner,
    "compatible": lambda inner: inner,
    "nat64": lambda inner: (0x0064FF9B << 96) | inner,
    "6to4": lambda inner: (0x2002 << 112) | (inner << 80) | 1,
    "teredo-client": lambda inner: (0x20010000_08080808 << 64) | (inner ^ 0xFFFFFFFF),
    "teredo-server": lambda inner: (0x20010000 << 96) | (inner << 64) | 0xF7F7F7F7,
    "isatap": lambda inner: (0x26064700_00000000_00005EFE << 32) | inner,
    "isatap-unique": lambda inner: (0x26064700_00000000_02005EFE << 32) | inner,
}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.name)
def test_answers_that_are_not_believed(answer: Answer) -> None:
    assert refusal(ip_address(answer.address), HOST) == answer.reason


def test_the_tables_are_as_large_as_they_claim() -> None:
    for table in (ADDRESS_SPELLINGS, ANSWERS):
        names = [entry.name for entry in table]
        assert len(set(names)) == len(names) >= 40
    assert sum(not spelling.read for spelling in ADDRESS_SPELLINGS) >= 40


@pytest.mark.parametrize("text", [*PUBLIC, *PUBLIC_V6])
def test_public_addresses_may_be_dialled(text: str) -> None:
    assert refusal(ip_address(text), HOST) is None


@pytest.mark.parametrize("disguise", DISGUISES)
@given(inner=st.ip_addresses(v=4))
def test_a_disguise_changes_nothing(disguise: str, inner: IPv4Address) -> None:
    outer = IPv6Address(DISGUISES[disguise](int(inner)))
    if int(outer) <= 1:  # :: and ::1 are no disguises
        return
    assert refusal(outer, HOST) == refusal(inner, HOST)


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_what_the_standard_library_calls_private_is_refused(address: Address) -> None:
    # It knows less than our table; what it does know must not be missing from ours.
    known = address.is_private or address.is_multicast or address.is_reserved
    if known and not any(address in network for network in CARRIERS):
        assert refusal(address, HOST) is not None


@given(st.integers(0, 2**128 - 1).filter(lambda number: number >> 125 != 1))
def test_of_ipv6_only_the_public_eighth_and_what_carries_ipv4_may_be_dialled(number: int) -> None:
    address = IPv6Address(number)
    if not any(address in network for network in CARRIERS):
        assert refusal(address, HOST) is not None


@pytest.mark.parametrize("text", ["2606:4700::1111%eth0", "fe80::1%1"])
def test_an_address_with_a_zone_is_refused(text: str) -> None:
    assert refusal(ip_address(text), HOST) == "an address with a zone"


def test_the_machines_own_addresses_are_refused_in_every_disguise() -> None:
    own = frozenset({ip_address("8.8.8.8"), ip_address("2606:4700::1111")})
    assert refusal(ip_address("8.8.4.4"), HOST, is_own=own.__contains__) is None
    for text in (
        "8.8.8.8",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::",
    ):
        assert refusal(ip_address(text), HOST, is_own=own.__contains__) == "the machine's own"


def test_what_the_operator_opened_is_open_for_exactly_that_name() -> None:
    opened = parse_opened(
        {"Index.example": ["10.20.0.0/16", "fd12::/64"], "lo.example": ["127.0.0.1"]}
    )
    for text in ("10.20.0.1", "10.20.255.255", "fd12::1"):
        assert refusal(ip_address(text), HOST, opened) is None
        for name in ("a.index.example", "example", "index.example.evil.test", "10.20.0.1"):
            assert refusal(ip_address(text), parse_host(name), opened) is not None
    for text in ("10.21.0.1", "fd13::1", "127.0.0.1", "::ffff:10.20.0.1", "2002:a14:1::"):
        assert refusal(ip_address(text), HOST, opened) is not None
    own = frozenset({ip_address("127.0.0.1")})
    assert (
        refusal(ip_address("127.0.0.1"), parse_host("lo.example"), opened, own.__contains__) is None
    )
    assert refusal(ip_address("8.8.8.8"), HOST, opened) is None


@pytest.mark.parametrize(
    "text",
    [
        "169.254.169.254",
        "fd00:ec2::254",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
    ],
)
def test_some_addresses_cannot_be_opened(text: str) -> None:
    opened = parse_opened({"index.example": [text]})
    assert refusal(ip_address(text), HOST, opened) is not None


def test_loopback_can_be_opened() -> None:
    opened = parse_opened({"index.example": ["127.0.0.1", "::1"]})
    for text in ("127.0.0.1", "::1"):
        assert refusal(ip_address(text), HOST, opened) is None
        assert refusal(ip_address(text), HOST) == "loopback"


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("*", "10.0.0.0/8"),
        ("*.example", "10.0.0.0/8"),
        ("", "10.0.0.0/8"),
        ("index.example", "0.0.0.0/0"),
        ("index.example", "8.0.0.0/7"),
        ("index.example", "::/0"),
        ("index.example", "10.0.0.1/8"),
        ("index.example", "ten"),
        ("index.example", ""),
    ],
)
def test_a_blanket_exception_is_refused(name: str, network: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_opened({name: [network]})
