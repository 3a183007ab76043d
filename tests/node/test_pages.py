"""Pages of text, against a plain reference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import InvalidRequest
from atoll.model.file import TextPage
from atoll.node.pages import Pager

pytestmark = pytest.mark.any_user


def page_of(
    data: bytes, start_line: int = 1, lines: int = 500, max_bytes: int = 65536, chunk: int = 7
) -> TextPage:
    pager = Pager(start_line, lines, max_bytes)
    for start in range(0, len(data), chunk):
        if not pager.feed(data[start : start + chunk]):
            break
    return pager.page()


def reference(data: bytes, start_line: int, lines: int, max_bytes: int) -> TextPage:
    """The same page, with the whole file in hand."""
    every = data.split(b"\n")
    whole = [line + b"\n" for line in every[:-1]] + ([every[-1]] if every[-1] else [])
    rest = whole[start_line - 1 :]
    taken: list[bytes] = []
    for line in rest[:lines]:
        if len(b"".join(taken)) + len(line) > max_bytes:
            break
        taken.append(line)
    end_line = start_line - 1 + len(taken)
    text = b"".join(taken).decode("utf-8", "replace")
    if len(taken) == len(rest):
        return TextPage(text, start_line, end_line, None, None)
    if len(taken) == lines:
        return TextPage(text, start_line, end_line, end_line + 1, "lines")
    if taken:
        return TextPage(text, start_line, end_line, end_line + 1, "bytes")
    beginning = _without_a_split_character(rest[0][:max_bytes])
    return TextPage(beginning, start_line, start_line, start_line + 1, "bytes")


def _without_a_split_character(data: bytes) -> str:
    for cut in range(1, 4):
        tail = data[-cut:]
        # The first byte of a character says how long it is.
        wanted = next(
            (n for n, low in ((4, 0xF0), (3, 0xE0), (2, 0xC2)) if tail[:1] >= bytes([low])), 0
        )
        if wanted > len(tail) and _may_go_on(tail):
            return data[:-cut].decode("utf-8", "replace")
    return data.decode("utf-8", "replace")


def _may_go_on(tail: bytes) -> bool:
    """Whether more bytes could make a character of this beginning of one."""
    low, high = {
        0xE0: (0xA0, 0xBF),
        0xED: (0x80, 0x9F),
        0xF0: (0x90, 0xBF),
        0xF4: (0x80, 0x8F),
    }.get(tail[0], (0x80, 0xBF))
    rest_fits = all(0x80 <= byte <= 0xBF for byte in tail[2:])
    return tail[0] <= 0xF4 and (len(tail) == 1 or low <= tail[1] <= high) and rest_fits


TEXTS = st.lists(
    st.sampled_from(
        [b"\n", b"a", b"bc", "é".encode(), "中".encode(), "🙂".encode(), b"\xff", b"\r"]
    ),
    max_size=60,
).map(b"".join)


@given(
    data=TEXTS | st.binary(max_size=200),
    start_line=st.integers(1, 12),
    lines=st.integers(1, 8),
    max_bytes=st.integers(1, 40),
    chunk=st.integers(1, 50),
)
def test_a_page_is_what_the_reference_says(
    data: bytes, start_line: int, lines: int, max_bytes: int, chunk: int
) -> None:
    expected = reference(data, start_line, lines, max_bytes)
    assert page_of(data, start_line, lines, max_bytes, chunk) == expected


@given(data=TEXTS, lines=st.integers(1, 5), max_bytes=st.integers(8, 40))
def test_pages_follow_each_other_to_the_end(data: bytes, lines: int, max_bytes: int) -> None:
    longest = max(len(line) + 1 for line in data.split(b"\n"))
    text, line, pages = "", 1, 0
    while True:
        page = page_of(data, line, lines, max_bytes + longest)
        text += page.text
        pages += 1
        if page.next_line is None:
            break
        assert page.next_line > line
        line = page.next_line
    assert text == data.decode("utf-8", "replace")
    assert pages <= data.count(b"\n") + 1


def test_an_empty_file_has_one_empty_page() -> None:
    assert page_of(b"") == TextPage("", 1, 0, None, None)


def test_beyond_the_end_there_is_nothing() -> None:
    assert page_of(b"a\nb\n", start_line=9) == TextPage("", 9, 8, None, None)


def test_lines_cut() -> None:
    assert page_of(b"1\n2\n3\n", lines=2) == TextPage("1\n2\n", 1, 2, 3, "lines")
    assert page_of(b"1\n2\n", lines=2) == TextPage("1\n2\n", 1, 2, None, None)
    assert page_of(b"1\n2", start_line=2, lines=1) == TextPage("2", 2, 2, None, None)


def test_bytes_cut_between_lines() -> None:
    assert page_of(b"1234\n5678\n", max_bytes=9) == TextPage("1234\n", 1, 1, 2, "bytes")


def test_a_line_longer_than_a_page_shows_its_beginning() -> None:
    data = "äääää\nnext\n".encode()
    assert page_of(data, max_bytes=5) == TextPage("ää", 1, 1, 2, "bytes")
    assert page_of(data, start_line=2, max_bytes=5) == TextPage("next\n", 2, 2, None, None)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", None])
def test_odd_numbers_are_refused(value: int) -> None:
    for numbers in ((value, 1, 1), (1, value, 1), (1, 1, value)):
        with pytest.raises(InvalidRequest, match="whole number"):
            Pager(*numbers)
