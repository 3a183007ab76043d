"""Networks and their rules, as people write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.model.hosts import Host, HostPattern, parse_host, parse_host_pattern
from atoll.model.network import (
    METHODS,
    MOST_RULES,
    Network,
    NetworkLimits,
    NetworkMode,
    Rule,
    Scheme,
    check_member_name,
    parse_rule,
    private_name,
)

pytestmark = pytest.mark.any_user

SCHEMES: tuple[Scheme, ...] = ("http", "https", "tcp")

patterns = st.sampled_from(
    ["api.example", "*.example", "192.0.2.7", "[2001:db8::7]", "a-b.xn--bcher-kva.example"]
).map(parse_host_pattern)
paths = st.sampled_from(["", "/", "/v1/*", "/v1/items", "/*/x*y", "/GET/x"])
web_rules = st.builds(
    Rule,
    patterns,
    st.none() | st.integers(1, 65535),
    st.sampled_from([None, "http", "https"]),
    st.frozensets(st.sampled_from(sorted(METHODS)), max_size=3),
    paths,
)
tcp_rules = st.builds(Rule, patterns, st.integers(1, 65535), st.just("tcp"))
rules = web_rules | tcp_rules
limits = st.builds(
    NetworkLimits,
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.none() | st.integers(0, 1 << 40),
    st.none() | st.integers(0, 1 << 40),
)
networks = st.one_of(
    st.sampled_from([Network(), Network(NetworkMode.OPEN)]),
    st.builds(
        Network,
        st.just(NetworkMode.RULES),
        st.lists(rules, max_size=5).map(tuple),
        st.sampled_from([(), ("registries",)]),
        st.sampled_from([(), ("192.0.2.53",), ("192.0.2.53:5353", "[2001:db8::53]")]),
        limits,
        st.just("build"),
        st.sampled_from([(), (5432,), (80, 65535)]),
    ),
    st.builds(
        Network,
        st.just(NetworkMode.RULES),
        st.lists(rules, max_size=5).map(tuple),
        limits=limits,
    ),
)


def pattern(text: str) -> HostPattern:
    return parse_host_pattern(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("api.example", Rule(pattern("api.example"))),
        ("API.Example:8443", Rule(pattern("api.example"), 8443)),
        ("*.example.com", Rule(pattern("*.example.com"))),
        ("[2001:db8::7]", Rule(pattern("[2001:db8::7]"))),
        ("[2001:db8::7]:443", Rule(pattern("[2001:db8::7]"), 443)),
        ("https://api.example", Rule(pattern("api.example"), None, "https")),
        ("tcp://db.example:5432", Rule(pattern("db.example"), 5432, "tcp")),
        ("api.example/GET", Rule(pattern("api.example"), methods=frozenset({"GET"}))),
        (
            "api.example/GET/v1/*",
            Rule(pattern("api.example"), methods=frozenset({"GET"}), path="/v1/*"),
        ),
        (
            "https://api.example:8443/GET,POST/v1/*",
            Rule(pattern("api.example"), 8443, "https", frozenset({"GET", "POST"}), "/v1/*"),
        ),
        ("api.example/v1/*", Rule(pattern("api.example"), path="/v1/*")),
        ("api.example/*", Rule(pattern("api.example"))),
        ("api.example/*/v1", Rule(pattern("api.example"), path="/v1")),
        ("api.example/*/", Rule(pattern("api.example"), path="/")),
        ("api.example/*/GET", Rule(pattern("api.example"), path="/GET")),
        ("api.example/Get/x", Rule(pattern("api.example"), path="/Get/x")),
    ],
)
def test_rules_as_they_are_written(text: str, rule: Rule) -> None:
    assert parse_rule(text) == rule


@given(rules)
def test_a_rule_that_is_shown_is_read_back(rule: Rule) -> None:
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "host ''"),
        ("*", "open"),
        ("*:443", "host"),
        ("ftp://api.example", "none of http, https and tcp"),
        ("HTTPS://api.example", "none of"),
        ("://api.example", "none of"),
        ("tcp://db.example", "port"),
        ("tcp://db.example:5432/GET", "no methods"),
        ("api.example:0", "port"),
        ("api.example:", "port"),
        ("api.example:*", "port"),
        ("user@api.example", "user name"),
        ("api.example.", "label"),
        ("bücher.example", "punycode"),
        ("127.1", "four decimal numbers"),
        ("api.example/", "without '/'"),
        ("api.example/API/v1", "no method"),
        ("api.example/GET,BREW", "'BREW' is no method"),
        ("api.example/GET,,POST", "no method"),
        ("api.example/v1/../x", "spelled '/x'"),
        ("api.example/%76", "spelled '/v'"),
        ("api.example/v1//x", "empty segment"),
        ("api.example//", "empty segment"),
        ("api.example/v1?x=1", "before '\\?'"),
        ("api.example/v1#x", "before"),
        ("api.example /v1", "white space"),
        ("fe80::1", "brackets"),
        (7, "not text"),
    ],
)
def test_a_refusal_names_the_rule_the_fault_and_an_example(text: str, fault: str) -> None:
    with pytest.raises(InvalidRequest, match=fault) as caught:
        parse_rule(text)
    assert repr(text) in caught.value.message
    assert "write it like 'api.example:443'" in caught.value.message


@given(st.text(max_size=40) | st.text("ab.*:/GET,%[]0", max_size=20))
def test_any_text_is_refused_or_read_back(text: str) -> None:
    try:
        rule = parse_rule(text)
    except InvalidRequest:
        return
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("x", {("http", 80), ("https", 443)}),
        ("http://x", {("http", 80)}),
        ("https://x", {("https", 443)}),
        ("x:80", {("http", 80)}),
        ("x:443", {("https", 443)}),
        ("x:8080", {("http", 8080), ("https", 8080)}),
        ("http://x:443", {("http", 443)}),
        ("https://x:80", {("https", 80)}),
        ("tcp://x:443", {("http", 443), ("https", 443), ("tcp", 443)}),
        ("tcp://x:8080", {("http", 8080), ("https", 8080), ("tcp", 8080)}),
    ],
)
def test_which_schemes_and_ports_a_rule_is_about(text: str, covered: set[tuple[str, int]]) -> None:
    rule = parse_rule(text)
    ports = (1, 22, 80, 443, 8080)
    assert covered == {
        (scheme, port) for scheme in SCHEMES for port in ports if rule.covers(scheme, port)
    }


close_names = st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=4).map(".".join)


@given(st.lists(st.tuples(close_names, st.booleans()), max_size=8), close_names)
def test_rules_are_found_as_their_patterns_match(hosts: list[tuple[str, bool]], name: str) -> None:
    network = Network(
        NetworkMode.RULES, tuple(Rule(HostPattern(Host(base), below)) for base, below in hosts)
    )
    found = network.rules_for(Host(name))
    wanted = [rule for rule in network.rules if rule.host.matches(Host(name))]
    assert sorted(map(str, found)) == sorted(map(str, wanted))


def test_rules_for_an_address_are_those_of_that_address() -> None:
    network = Network.parse(["192.0.2.7", "[2001:db8::7]", "*.example"])
    for text in ("192.0.2.7", "[2001:db8::7]"):
        assert network.rules_for(parse_host(text)) == [parse_rule(text)]
    assert network.rules_for(parse_host("[::ffff:192.0.2.7]")) == []


def test_none_is_the_default_and_open_has_to_be_asked_for() -> None:
    assert Network() == Network.parse("none")
    assert Network.parse("open").mode is NetworkMode.OPEN
    assert Network.parse([]) == Network(NetworkMode.RULES)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("api.example", ["api.example"]),
        ("a.example:443,api.example/GET/v1/*", ["a.example:443", "api.example/GET/v1/*"]),
        ("a.example, b.example", ["a.example", "b.example"]),
        (
            "https://a.example/GET,POST/v1/*,b.example",
            ["https://a.example/GET,POST/v1/*", "b.example"],
        ),
        ("a.example/GET,POST,b.example", ["a.example/GET,POST", "b.example"]),
        ("a.example/v1/GET,get.example", ["a.example/v1/GET", "get.example"]),
        ("registries,a.example", ["registries", "a.example"]),
    ],
)
def test_one_text_holds_several_rules(text: str, texts: list[str]) -> None:
    assert Network.parse(text) == Network.parse(texts)


@given(st.lists(web_rules.filter(lambda rule: "," not in rule.path), min_size=1, max_size=4))
def test_rules_joined_by_commas_are_the_same_rules(rules: list[Rule]) -> None:
    texts = [str(rule) for rule in rules]
    assert Network.parse(",".join(texts)) == Network.parse(texts)


@pytest.mark.parametrize(
    "value",
    [
        "",
        ",",
        "a.example,",
        "none,a.example",
        "open,a.example",
        ["open", "none"],
        ["a.example", 7],
        None,
        7,
    ],
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        Network.parse(value)


def test_presets_allow_nothing_until_the_node_says_what_they_mean() -> None:
    network = Network.parse(["registries", "a.example", "registries"])
    assert network.presets == ("registries",)
    assert network.rules == (parse_rule("a.example"),)
    index = parse_rule("https://index.example")
    known = network.with_presets({"registries": [index]})
    assert (known.rules, known.presets) == ((parse_rule("a.example"), index), ())
    assert known.rules_for(parse_host("index.example")) == [index]


def test_too_many_rules_are_refused() -> None:
    texts = [f"h{number}.example" for number in range(MOST_RULES)]
    assert len(Network.parse(texts).rules) == MOST_RULES
    with pytest.raises(InvalidRequest, match=str(MOST_RULES)):
        Network.parse([*texts, "one.more.example"])


@pytest.mark.parametrize("server", ["dns.example", "", "192.0.2.53:0", "::1", "1", 7])
def test_name_servers_are_addresses(server: Any) -> None:
    with pytest.raises(InvalidRequest):
        Network.parse([], dns=[server])


def test_a_private_network_is_beside_every_mode() -> None:
    for text in ("none", "open", "api.example"):
        assert Network.parse(text, private="build", ports=[80]).has_listeners
    assert not Network().has_listeners
    assert Network.parse([]).has_listeners
    assert private_name("db", "build") == "db.build.internal"


@pytest.mark.parametrize(
    ("ports", "private"),
    [([80], None), ([0], "b"), ([65536], "b"), ([True], "b"), (["80"], "b"), ([80, 80], "b"), ("80", "b"),
     (list(range(1, 18)), "b")],
    ids=str,
)  # fmt: skip
def test_odd_ports_are_refused(ports: Any, private: str | None) -> None:
    with pytest.raises(InvalidRequest, match="port"):
        Network.parse([], private=private, ports=ports)


@pytest.mark.parametrize("rule", ["x.build.internal", "*.build.internal", "tcp://build.internal:1"])
def test_rules_cannot_mean_members(rule: str) -> None:
    with pytest.raises(InvalidRequest, match="members of the private network"):
        Network.parse([rule], private="build")
    Network.parse([rule], private="other")
    Network.parse([rule])


@pytest.mark.parametrize(
    "name", [None, "localhost", "ip6-loopback", "1234", "0x1f", "-db", "db-", "xn--zz"]
)
def test_names_that_cannot_be_found_are_refused_for_who_serves(name: str | None) -> None:
    with pytest.raises(InvalidRequest):
        check_member_name(Network.parse([], private="build", ports=[1]), name)
    check_member_name(Network.parse([], private="build"), name)
    check_member_name(Network(), name)


@pytest.mark.parametrize("name", ["", "Build", "a_b", "a" * 41, "-a", "a-", "a.b", "xn--zz"])
def test_odd_names_of_private_networks_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="private network"):
        Network.parse([], private=name)


@pytest.mark.parametrize("value", [-1, 1.5, True, "1", None, 1 << 61])
def test_odd_limits_are_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="connections"):
        NetworkLimits(connections=value)


@given(networks)
def test_a_network_survives_json(network: Network) -> None:
    assert Network.from_json(json.loads(json.dumps(network.to_json()))) == network


def test_rules_and_another_mode_do_not_go_together() -> None:
    for mode in (NetworkMode.NONE, NetworkMode.OPEN):
        with pytest.raises(InvalidRequest, match="no rules"):
            Network(mode, (parse_rule("api.example"),))


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "all"},
        {"mode": None},
        {"rules": "api.example"},
        {"rules": ["*"]},
        {"rules": None},
        {"rules": [["api.example"]]},
        {"presets": ["everything"]},
        {"presets": "registries"},
        {"dns": ["dns.example"]},
        {"limits": {"connections": "many"}},
        {"limits": {"speed": 1}},
        {"limits": None},
        {"private": 7},
        {"ports": [1]},
        {"ports": "1"},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_broken_network_is_refused_not_guessed(change: dict[str, Any]) -> None:
    fields = Network.parse(["api.example"]).to_json()
    with pytest.raises(InvalidRequest):
        Network.from_json({**fields, **change})


@pytest.mark.parametrize("missing", ["mode", "rules", "presets", "dns", "limits"])
def test_a_network_with_a_part_missing_is_refused(missing: str) -> None:
    fields = Network.parse(["api.example"]).to_json()
    del fields[missing]
    with pytest.raises(InvalidRequest, match=missing):
        Network.from_json(fields)
