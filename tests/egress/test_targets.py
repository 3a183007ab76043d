"""Targets of requests in absolute form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.egress.targets import Target, parse_target
from atoll.errors import InvalidRequest
from atoll.model.hosts import Host, parse_host

pytestmark = pytest.mark.any_user


@pytest.mark.parametrize(
    ("text", "host", "port", "path"),
    [
        ("http://api.example", "api.example", 80, "/"),
        ("http://api.example/", "api.example", 80, "/"),
        ("HTTP://API.example:8080/V1", "api.example", 8080, "/V1"),
        ("http://api.example?x=/y", "api.example", 80, "/?x=/y"),
        ("http://api.example:8080?", "api.example", 8080, "/?"),
        ("http://[2001:db8::7]/x", "[2001:db8::7]", 80, "/x"),
        ("http://[2001:db8::7]:8080/x", "[2001:db8::7]", 8080, "/x"),
        ("http://api.example/a//b/../c?d", "api.example", 80, "/a//b/../c?d"),
    ],
)
def test_parts_of_a_target(text: str, host: str, port: int, path: str) -> None:
    assert parse_target(text) == Target(parse_host(host), port, path)


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=30))
def test_what_follows_the_host_never_changes_it(text: str) -> None:
    for target in (f"http://api.example/{text}", f"http://api.example?{text}"):
        try:
            assert parse_target(target).host == Host("api.example")
        except InvalidRequest:
            assert set(text) & set(" #\\")


@given(st.text(max_size=60).map("http://".__add__) | st.text(max_size=60))
def test_any_text_is_refused_or_put_together_again(text: str) -> None:
    try:
        target = parse_target(text)
    except InvalidRequest:
        return
    assert parse_target(f"http://{target.host}:{target.port}{target.path}") == target


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("https://api.example/", "CONNECT"),
        ("/v1", "http://"),
        ("http://user@api.example/", "user name"),
        ("http://api.example/a b", "white space"),
        ("http://api.example/#x", "'#'"),
        ("http:///v1", "label"),
    ],
)
def test_a_refusal_says_what_is_wrong(text: str, fault: str) -> None:
    with pytest.raises(InvalidRequest, match=fault):
        parse_target(text)
