"""What a network allows: decided as the reference decides, and each named spelling as its table says."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.egress.policy import Attempt, Verdict, decide
from atoll.egress.targets import parse_target
from atoll.errors import InvalidRequest
from atoll.model.hosts import Host, parse_authority, parse_host
from atoll.model.network import Network, NetworkMode, Scheme, parse_rule
from atoll.model.url_paths import normal_path
from tests.egress.spellings import HOST_SPELLINGS, Spelling, host_texts, rules

pytestmark = pytest.mark.any_user

PORT = 8080
SCHEMES: tuple[Scheme, ...] = ("http", "https", "tcp")


def ask(network: Network, url: str, method: str | None = "GET") -> Verdict:
    """Decide on a URL; without a method its path is not seen either."""
    scheme, _, rest = url.partition("://")
    target = parse_target(f"http://{rest}")
    kind = next(known for known in SCHEMES if known == scheme)
    port = target.port if ":" in rest.partition("/")[0] or kind == "http" else 443
    return decide(
        network, Attempt(kind, target.host, port, method, target.path if method else None)
    )


def allows(network: Network, spelling: Spelling) -> bool:
    """Judge a request as a proxy does that believes nothing but these parsers."""
    try:
        if spelling.form == "connect":
            host, port = parse_authority(spelling.target_at(PORT))
            return decide(network, Attempt("https", host, port)).allowed
        target = parse_target(spelling.target_at(PORT))
        headers = [parse_authority(host, target.port) for host in spelling.hosts_at(PORT)]
    except InvalidRequest:
        return False
    if headers != [(target.host, target.port)]:
        return False
    attempt = Attempt("http", target.host, target.port, "GET", target.path)
    return decide(network, attempt).allowed


@pytest.mark.parametrize("spelling", HOST_SPELLINGS, ids=lambda spelling: spelling.name)
def test_spellings_of_the_table(spelling: Spelling) -> None:
    assert allows(Network.parse(rules(PORT)), spelling) == spelling.arrives, spelling.why


def test_the_table_is_as_large_as_it_claims_and_has_both_sides() -> None:
    names = [spelling.name for spelling in HOST_SPELLINGS]
    assert len(set(names)) == len(names)
    assert len({host.text for host in host_texts()}) >= 200
    for form in ("connect", "absolute"):
        of_form = [spelling for spelling in HOST_SPELLINGS if spelling.form == form]
        assert sum(spelling.arrives for spelling in of_form) >= 10
        assert sum(not spelling.arrives for spelling in of_form) >= 200


# Few hosts, ports, methods and paths, so that rules and attempts do meet.
HOSTS = ("a", "b.a", "c.b.a", "ba", "192.0.2.7")
PATHS = ("/", "/v", "/v/w", "/v/../w", "/%76", "/v%2fw", "/w?/v", "//v")
some_rules = st.lists(
    st.builds(
        "{}{}{}{}{}".format,
        st.sampled_from(["", "http://", "https://"]),
        st.sampled_from(["a", "*.a", "b.a", "*.b.a", "192.0.2.7"]),
        st.sampled_from(["", ":80", ":443", ":8080"]),
        st.sampled_from(["", "/GET", "/GET,POST", "/*"]),
        st.sampled_from(["", "/v", "/v/*", "/*w", "/*v*"]),
    )
    | st.sampled_from(["tcp://a:443", "tcp://b.a:8080", "tcp://*.a:22", "tcp://192.0.2.7:80"]),
    max_size=4,
)
some_attempts = st.builds(
    Attempt,
    st.sampled_from(SCHEMES),
    st.sampled_from(HOSTS).map(parse_host),
    st.sampled_from([22, 80, 443, 8080]),
    st.sampled_from(["GET", "POST", "get"]),
    st.sampled_from(PATHS),
)


def allowed_by(text: str, attempt: Attempt) -> bool:
    """The reference: one rule's text against one attempt, straight from the grammar."""
    match = re.fullmatch(
        r"(?:(\w+)://)?(\*\.)?([\w.]+)(?::(\d+))?(?:/([A-Z,]+|\*)(?=/|$))?(/.*)?", text
    )
    assert match is not None
    scheme, star, base, port, methods, path = match.groups()
    labels, wanted = str(attempt.host).split("."), base.split(".")
    below = len(labels) > len(wanted) and labels[-len(wanted) :] == wanted
    if not (below and attempt.host.address is None if star else labels == wanted):
        return False
    if scheme == "tcp":
        return attempt.port == int(port)
    usual = {"http": 80, "https": 443, "tcp": None}[attempt.scheme]
    if usual is None or scheme not in (None, attempt.scheme):
        return False
    if attempt.port != int(port or usual):
        return False
    if scheme is None and attempt.port in (80, 443) and attempt.port != usual:
        return False
    if methods not in (None, "*") and attempt.method not in methods.split(","):
        return False
    if path is None:
        return True
    assert attempt.path is not None
    try:
        normal = normal_path(attempt.path.split("?")[0])
    except InvalidRequest:
        return False
    return re.fullmatch(re.escape(path).replace(r"\*", ".*"), normal) is not None


@given(some_rules, some_attempts)
def test_decides_as_the_reference_does(texts: list[str], attempt: Attempt) -> None:
    verdict = decide(Network.parse(texts), attempt)
    assert verdict.allowed == any(allowed_by(text, attempt) for text in texts)
    assert not verdict.inspect


@given(some_rules, some_attempts)
def test_what_cannot_be_seen_is_allowed_only_where_it_does_not_matter(
    texts: list[str], attempt: Attempt
) -> None:
    network = Network.parse(texts)
    unseen = Attempt(attempt.scheme, attempt.host, attempt.port)
    verdict = decide(network, unseen)
    assert not (verdict.allowed and verdict.inspect)
    seen = decide(network, attempt)
    if verdict.allowed:
        assert seen.allowed
    if seen.allowed:
        assert verdict.allowed or verdict.inspect


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_is_allowed_by_default_or_without_rules(scheme: Scheme) -> None:
    for network in (Network(), Network.parse([]), Network.parse(["registries"])):
        for port in (22, 80, 443):
            for host in ("api.example", "127.0.0.1", "localhost"):
                verdict = decide(network, Attempt(scheme, parse_host(host), port, "GET", "/"))
                assert (verdict.allowed, verdict.inspect, verdict.raw) == (False, False, False)
                assert f"{host}:{port}" in verdict.reason


def test_an_open_network_lets_everything_pass() -> None:
    network = Network(NetworkMode.OPEN)
    for scheme, port in product(SCHEMES, (22, 80, 443)):
        verdict = decide(network, Attempt(scheme, Host("api.example"), port))
        assert (verdict.allowed, verdict.raw) == (True, True)


def test_methods_and_paths_are_checked_for_every_request() -> None:
    network = Network.parse(["api.example/GET,HEAD/v1/*"])
    assert ask(network, "http://api.example/v1/items").allowed
    assert ask(network, "http://api.example/v1/items", "HEAD").allowed
    for method in ("POST", "get", "GETS", "GET,HEAD", ""):
        verdict = decide(network, Attempt("http", Host("api.example"), 80, method, "/v1/items"))
        assert not verdict.allowed
    for path in ("/", "/v1", "/v2/items", "/V1/items", "/v1/../v2", "/v1/%2e%2e/v2", "/v1/..;/v2"):
        assert not ask(network, f"http://api.example{path}").allowed
    for path in ("/v1/a%2fb", "/v1//a", "/v1/%00", "/v1/%252e%252e/v2", "/v1/%c0%ae%c0%ae/v2"):
        assert not ask(network, f"http://api.example{path}").allowed


def test_the_path_that_was_checked_is_the_one_to_send() -> None:
    network = Network.parse(["api.example/v1/*", "free.example"])
    verdict = ask(network, "http://api.example/a/../v1/%69tems?q=%2e%2e//")
    assert (verdict.allowed, verdict.path) == (True, "/v1/items?q=%2e%2e//")
    # Where no rule is about paths nothing is changed.
    untouched = "/a/../v1//%69tems?q=%2e%2e"
    assert ask(network, f"http://free.example{untouched}").path == untouched


def test_a_query_is_not_part_of_the_path() -> None:
    network = Network.parse(["api.example/v1"])
    assert ask(network, "http://api.example/v1?x=/../..//%2f").allowed
    assert not ask(network, "http://api.example/?/v1").allowed


def test_a_tunnel_under_rules_on_requests_has_to_be_looked_into() -> None:
    network = Network.parse(["api.example/GET/v1/*"])
    verdict = ask(network, "https://api.example", method=None)
    assert (verdict.allowed, verdict.inspect) == (False, True)
    assert verdict.rule == parse_rule("api.example/GET/v1/*")
    assert ask(network, "https://api.example/v1/x").allowed
    assert not ask(network, "https://api.example/v2/x").allowed
    assert not ask(network, "https://other.example", method=None).inspect


def test_a_wider_rule_spares_the_look_inside_wherever_it_stands() -> None:
    narrow, wide = "api.example/GET/v1/*", "*.example"
    for texts in ([narrow, wide], [wide, narrow]):
        verdict = ask(Network.parse(texts), "https://api.example", method=None)
        assert (verdict.allowed, verdict.inspect, verdict.raw) == (True, False, False)


def test_only_a_tcp_rule_lets_raw_bytes_through() -> None:
    assert not ask(Network.parse(["api.example:443"]), "https://api.example", None).raw
    for texts in (["tcp://api.example:443"], ["api.example", "tcp://api.example:443"]):
        verdict = ask(Network.parse(texts), "https://api.example", None)
        assert (verdict.allowed, verdict.raw) == (True, True)
    assert not decide(
        Network.parse(["api.example:5432"]), Attempt("tcp", Host("api.example"), 5432)
    ).allowed


def test_a_refusal_names_host_port_and_the_way_out() -> None:
    network = Network.parse(["api.example"])
    reason = decide(network, Attempt("tcp", Host("db.example"), 5432)).reason
    assert "'tcp://db.example:5432'" in reason
    assert decide(
        Network.parse(["tcp://db.example:5432"]), Attempt("tcp", Host("db.example"), 5432)
    ).allowed
    reason = ask(network, "https://other.example").reason
    assert "'other.example:443'" in reason
    assert ask(Network.parse(["other.example:443"]), "https://other.example").allowed
