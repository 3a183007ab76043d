"""Texts cut for those who read them whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.cuts import CutLimits, cut_text

pytestmark = pytest.mark.any_user


def test_the_limits_are_those_that_tools_know() -> None:
    limits = CutLimits()
    assert (limits.stdout, limits.stderr) == (50_000, 120_000)
    assert (limits.result, limits.traceback) == (30_000, 8_000)


@pytest.mark.parametrize("most", [0, 199, -1, True, 1e6, "9"])
def test_impossible_limits_are_refused(most: object) -> None:
    with pytest.raises(ValueError, match="stdout is"):
        CutLimits(stdout=most)  # type: ignore[arg-type]


def test_head_and_tail_are_kept_around_a_note() -> None:
    text = "first line\n" + "x" * 100_000 + "\nlast line"
    cut = cut_text(text, 1_000, "stdout", way_out="write it to a file and read that")
    assert cut.is_cut and cut.length == len(text)
    assert len(cut.text) == 1_000
    assert cut.text.startswith("first line\n") and cut.text.endswith("\nlast line")
    assert "stdout is cut: 100,021 characters in all; write it to a file and read that" in cut.text


def test_what_was_cut_before_says_how_long_it_was() -> None:
    short = cut_text("x" * 100, 1_000, "stdout", length=5_000_000)
    assert short.text.startswith("x" * 100) and "5,000,000 characters" in short.text
    assert short.is_cut and short.length == 5_000_000
    long = cut_text("x" * 990, 1_000, "stdout", length=5_000_000)
    assert len(long.text) == 1_000 and "5,000,000 characters" in long.text


def test_what_was_cut_before_to_nobody_knows_what_says_so() -> None:
    short = cut_text("x" * 100, 1_000, "stdout", is_part=True)
    assert short.is_cut and "more than 100 characters" in short.text


@given(st.text(max_size=3000), st.integers(200, 1000), st.integers(0, 5000))
def test_nothing_passes_its_limit_and_nothing_short_is_touched(
    text: str, most: int, length: int
) -> None:
    cut = cut_text(text, most, "result", length=length)
    assert len(cut.text) <= most
    assert cut.length == max(len(text), length)
    assert cut.is_cut == (len(text) > most or length > len(text))
    if not cut.is_cut:
        assert cut.text == text
