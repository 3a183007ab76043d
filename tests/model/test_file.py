"""The one grammar of paths."""

from __future__ import annotations

import os
import posixpath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.model.file import MAX_NAME_BYTES, MAX_PATH_BYTES, WORKSPACE, parse_path

pytestmark = pytest.mark.any_user

ORDINARY = ["/", "//", ".", "..", "...", "a", "b c", "ä", "\\", "%2e", "~", "workspace", " "]
ODD = ["\0", "\n", "/workspace", "/workspace/", "/workspacex", "\udcff", "\ud800"]
PIECES = st.sampled_from([*ORDINARY, *ODD, "x" * 255, "y" * 256])
# The profile is loaded when the tests are collected; see tests/conftest.py.
LONG = settings().max_examples > 100
PATHS = st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=60)


@given(PATHS)
@settings(max_examples=10_000 if LONG else 500)
@example("")
@example("/workspace")
@example("a/../../b")
def test_a_path_is_inside_or_refused(path: str) -> None:
    try:
        clean = parse_path(path)
    except InvalidRequest as error:
        assert str(error)
        return
    parts = clean.split("/")
    assert clean == "." or not {"", ".", ".."} & set(parts)
    assert not clean.startswith("/")
    assert "\0" not in clean
    assert all(len(os.fsencode(part)) <= MAX_NAME_BYTES for part in parts)
    assert len(os.fsencode(clean)) <= MAX_PATH_BYTES
    # The kernel's reading and ours agree.
    from_workspace = posixpath.normpath(posixpath.join(WORKSPACE, path))
    assert from_workspace == posixpath.normpath(f"{WORKSPACE}/{clean}")
    assert from_workspace == WORKSPACE or from_workspace.startswith(WORKSPACE + "/")


@given(PATHS)
def test_what_comes_out_is_a_path_itself(path: str) -> None:
    try:
        clean = parse_path(path)
    except InvalidRequest:
        return
    assert parse_path(clean) == clean
    assert parse_path(f"{WORKSPACE}/{clean}") == clean


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("", "."),
        (".", "."),
        ("./", "."),
        ("/workspace", "."),
        ("/workspace/", "."),
        ("a", "a"),
        ("a/", "a"),
        ("./a/./b", "a/b"),
        ("/workspace/a", "a"),
        ("workspace/a", "workspace/a"),
        ("...", "..."),
        (" ", " "),
        ("a\\b", "a\\b"),
    ],
)
def test_good_paths(path: str, clean: str) -> None:
    assert parse_path(path) == clean


@pytest.mark.parametrize(
    "path",
    [
        *("..", "a/..", "../a", "/", "/etc", "//workspace", "/workspace/..", "/workspace//a"),
        *("a//b", "a\0", "/workspacex/a", "x" * 256, "a/" * 2001 + "a", "\ud800"),
        *(b"a", None, 5),
    ],
    ids=lambda path: ascii(path)[:30],
)
def test_bad_paths(path: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_path(path)
