"""Hosts: one spelling each, and patterns that mean labels."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.model.hosts import (
    Host,
    HostPattern,
    parse_authority,
    parse_host,
    parse_host_pattern,
    parse_port,
)
from tests.egress.spellings import ADDRESS_SPELLINGS, AddressSpelling, HostText, host_texts

pytestmark = pytest.mark.any_user

labels = st.builds(
    "{}{}{}".format, st.sampled_from("abyz"), st.text("az09-_", max_size=6), st.sampled_from("az09")
)
names = st.lists(labels, min_size=1, max_size=5).map(".".join)
addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
hosts = st.one_of(names.map(Host), addresses.map(lambda address: Host(address=address)))


@given(names, st.data())
def test_case_does_not_matter(name: str, data: st.DataObject) -> None:
    upper = data.draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    written = "".join(
        letter.upper() if up else letter for letter, up in zip(name, upper, strict=True)
    )
    assert parse_host(written) == Host(name)


@given(hosts)
def test_what_is_shown_is_read_back(host: Host) -> None:
    assert parse_host(str(host)) == host
    assert str(parse_host(str(host))) == str(host)


@given(st.ip_addresses(v=6))
def test_an_ipv6_address_has_one_value_however_long_it_is_written(address: IPv6Address) -> None:
    assert parse_host(f"[{address.exploded}]") == parse_host(f"[{address.compressed.upper()}]")


@given(st.text(max_size=300))
def test_any_text_is_refused_or_read_back(text: str) -> None:
    try:
        host = parse_host(text)
    except InvalidRequest as error:
        assert "write it like" in error.message
    else:
        assert parse_host(str(host)) == host
        assert str(host) == text.lower() or isinstance(host.address, IPv6Address)


@pytest.mark.parametrize(
    "name",
    [
        *("a", "localhost", "a-b.example", "a_b.example", "r3---sn-abc.example", "1.example"),
        *("0x7f.example", "1e3", "127.0.0.1.example", "xn--bcher-kva.example", "xn--strae-oqa.de"),
        *("a" * 63 + ".example", ".".join(["a" * 49] * 5) + ".xyz"),
    ],
)
def test_names_that_are_in_use_are_read(name: str) -> None:
    assert parse_host(name) == Host(name)


@pytest.mark.parametrize("host", host_texts(), ids=lambda host: host.name)
def test_spellings_of_the_table(host: HostText) -> None:
    if host.arrives:
        assert parse_host(host.text) == Host(host.text.lower())
        return
    try:
        read = parse_host(host.text)
    except InvalidRequest:
        return
    # What is read at all is another name, and only because it is written so.
    assert host.why.startswith("another host")
    assert read == Host(host.text.lower())


@pytest.mark.parametrize("spelling", ADDRESS_SPELLINGS, ids=lambda spelling: spelling.name)
def test_addresses_have_no_second_spelling(spelling: AddressSpelling) -> None:
    if spelling.read:
        assert parse_host(spelling.text).address is not None
    else:
        with pytest.raises(InvalidRequest, match="host"):
            parse_host(spelling.text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("bücher.example", "punycode"),
        ("user@api.example", "user name"),
        ("fe80::1", "brackets"),
        ("[fe80::1%eth0]", "percent"),
        ("2130706433", "four decimal numbers"),
        ("api.example:80", "no port here"),
        ("a" * 254, "longer than 253"),
        ("*.example", "only in rules"),
        ("api .example", "white space"),
        ("api.example.", "label"),
    ],
)
def test_a_refusal_says_what_is_wrong(text: str, fault: str) -> None:
    with pytest.raises(InvalidRequest, match=fault):
        parse_host(text)


def test_a_long_text_is_not_repeated_in_the_refusal() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_host("a" * 100_000)
    assert len(caught.value.message) < 400


@given(hosts, st.integers(1, 65535))
def test_authorities(host: Host, port: int) -> None:
    assert parse_authority(f"{host}:{port}") == (host, port)
    assert parse_authority(f"{host}:{port}", 80) == (host, port)
    assert parse_authority(str(host), 80) == (host, 80)


@given(hosts)
def test_without_a_default_the_port_has_to_be_there(host: Host) -> None:
    with pytest.raises(InvalidRequest, match="port"):
        parse_authority(str(host))


@pytest.mark.parametrize(
    "port", ["", "0", "00", "080", "+80", "-1", " 80", "80 ", "8_0", "0x50", "65536", "٨٠", "9" * 9]
)
def test_odd_ports_are_refused(port: str) -> None:
    with pytest.raises(InvalidRequest, match="port"):
        parse_port(port)
    with pytest.raises(InvalidRequest, match="port"):
        parse_authority(f"api.example:{port}", 80)


def matches_by_labels(pattern: str, name: str) -> bool:
    """The reference: labels from the right, one by one."""
    wanted, given = pattern.split(".")[::-1], name.split(".")[::-1]
    if wanted[-1] != "*":
        return wanted == given
    return len(given) >= len(wanted) and given[: len(wanted) - 1] == wanted[:-1]


# Few letters, so that names do end in each other, with and without a dot between.
close_names = st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=4).map(".".join)


@given(close_names, st.booleans(), close_names)
def test_patterns_match_as_the_reference_does(base: str, below: bool, name: str) -> None:
    text = f"*.{base}" if below else base
    assert parse_host_pattern(text).matches(Host(name)) == matches_by_labels(text, name)


@given(names, labels)
def test_a_star_means_what_is_below_and_not_the_name_itself(name: str, label: str) -> None:
    pattern = parse_host_pattern(f"*.{name.upper()}")
    assert str(pattern) == f"*.{name}"
    assert pattern.matches(Host(f"{label}.{name}"))
    assert pattern.matches(Host(f"{label}.{label}.{name}"))
    assert not pattern.matches(Host(name))
    assert not pattern.matches(Host(f"{label}{name}"))


def test_an_address_matches_only_itself() -> None:
    pattern = parse_host_pattern("192.0.2.7")
    assert pattern == HostPattern(Host(address=IPv4Address("192.0.2.7")))
    assert pattern.matches(parse_host("192.0.2.7"))
    assert not pattern.matches(parse_host("192.0.2.8"))
    assert not pattern.matches(parse_host("[::ffff:192.0.2.7]"))
    assert not parse_host_pattern("*.example").matches(parse_host("192.0.2.7"))


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "*.",
        "**.example",
        "*example",
        "a.*",
        "a.*.example",
        "*.*.example",
        "*.192.0.2.7",
        "*.[::1]",
        "",
    ],
)
def test_other_stars_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_host_pattern(text)
