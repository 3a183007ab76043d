"""Which interpreter runs a program."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.language import LANGUAGES, find_language, guess_language

pytestmark = pytest.mark.any_user


@pytest.mark.parametrize(
    ("name", "head", "language"),
    [
        ("a.py", b"", "python"),
        ("a.PY", b"", "python"),
        ("a.js", b"", "node"),
        ("a.mjs", b"", "node"),
        ("a.ts", b"", "node"),
        ("a.sh", b"", "bash"),
        ("a.R", b"", "r"),
        ("a.jl", b"", "julia"),
        ("a.py", b"#!/bin/bash\n", "python"),
        ("a", b"#!/bin/bash\necho", "bash"),
        ("a", b"#!/bin/sh", "sh"),
        ("a", b"#! /usr/bin/env -S node --harmony\n", "node"),
        ("a", b"#!/usr/local/bin/python3.12 -u\n", "python"),
        ("a", b"#!/usr/bin/Rscript\n", "r"),
        ("a", b"#!/usr/bin/env julia\n", "julia"),
        ("a", b"#!/usr/bin/env\n", "python"),
        ("a", b"#!\n", "python"),
        ("a", b"#!/usr/bin/unknown\n", "python"),
        ("", b"print(1)", "python"),
        ("a.unknown", b"", "python"),
    ],
)
def test_a_language_is_guessed(name: str, head: bytes, language: str) -> None:
    assert guess_language(name, head).name == language


@given(st.text(), st.binary())
def test_every_program_has_a_language(name: str, head: bytes) -> None:
    assert guess_language(name, head) in LANGUAGES


def test_languages_are_found_by_any_of_their_names() -> None:
    for name, language in {
        "Python": "python",
        "py": "python",
        "JavaScript": "node",
        "R": "r",
        "jl": "julia",
    }.items():
        found = find_language(name)
        assert found is not None and found.name == language
    assert find_language("cobol") is None


def test_a_file_name_is_never_taken_for_an_option() -> None:
    for language in LANGUAGES:
        assert language.run_file("-x.py", ["-y"])[-2:] == ("./-x.py", "-y")
