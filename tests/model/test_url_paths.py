"""Paths of URLs: one spelling, and patterns with stars."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.model.url_paths import matches_path, normal_path

pytestmark = pytest.mark.any_user


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("/", "/"),
        ("/v1/items", "/v1/items"),
        ("/v1/items/", "/v1/items/"),
        ("/%76%31/x", "/v1/x"),
        ("/a%7Eb%2db", "/a~b-b"),
        ("/a%20b%c3%bc", "/a%20b%C3%BC"),
        ("/100%25", "/100%25"),
        ("/a/./b", "/a/b"),
        ("/a/../b", "/b"),
        ("/a/b/..", "/a/"),
        ("/a/b/.", "/a/b/"),
        ("/..", "/"),
        ("/../../a", "/a"),
        ("/v1/%2e%2e/admin", "/admin"),
        ("/v1/.%2E/admin", "/admin"),
        ("/v1/..a/...", "/v1/..a/..."),
        ("/a;b=1/c", "/a;b=1/c"),
        ("/.well-known/x", "/.well-known/x"),
    ],
)
def test_examples(written: str, normal: str) -> None:
    assert normal_path(written) == normal


@pytest.mark.parametrize(
    "path",
    [
        *("", "v1", "*", "http://x/", "//", "/v1//x", "//v1", "/v1/\0"),
        *("/v1/%2f", "/v1%2Fx", "/v1/%5c", "/v1\\x", "/v1/%00", "/v1/%0a", "/v1/%7f", "/v1/\n"),
        *("/v1/..;/admin", "/v1/..;a=b/admin", "/v1/.;/x", "/v1/..%3b/admin", "/v1/%2e%2e;/admin"),
        *("/%252e%252e/x", "/%252f", "/%25%32%66", "/%2", "/%", "/%zz", "/%u002e", "/%25u002e"),
        *("/%c0%ae%c0%ae/x", "/%c0%af", "/%ff", "/%ed%a0%80", "/ü", "/a b", "/a?b", "/a#b", '/"'),
    ],
)
def test_what_servers_read_in_two_ways_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match="path"):
        normal_path(path)


@given(st.text("/.%2eE5fF;aA", max_size=20).map("/".__add__))
def test_the_normal_form_is_its_own_and_has_no_dots_left(path: str) -> None:
    try:
        normal = normal_path(path)
    except InvalidRequest:
        return
    assert normal_path(normal) == normal
    assert normal.startswith("/")
    assert not {".", ".."} & set(normal.split("/"))
    assert "//" not in normal


@given(st.lists(st.sampled_from(["a", "b", ".", "..", "c;d"]), min_size=1, max_size=8))
def test_nothing_leads_above_the_root(segments: list[str]) -> None:
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            kept = kept[:-1]
        elif segment != ".":
            kept.append(segment)
    ending = "/" if kept and segments[-1] in (".", "..") else ""
    assert normal_path("/" + "/".join(segments)) == "/" + "/".join(kept) + ending


@given(st.text("a*/", max_size=6), st.text("a/", max_size=6))
@example("/ab*ba", "/aba")  # beginning and end must not share letters
@example("*ab*b", "ab")
def test_patterns_match_as_a_regular_expression_does(pattern: str, path: str) -> None:
    reference = ".*".join(re.escape(part) for part in pattern.split("*"))
    assert matches_path(pattern, path) == bool(re.fullmatch(reference, path))


def test_a_pattern_made_to_be_slow_is_not() -> None:
    # Where a regular expression tries each way to share the letters out, this is 1e30 steps.
    assert not matches_path("/*" + "a*" * 200 + "b", "/" + "a" * 60_000)
