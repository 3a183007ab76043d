"""Where one cell ends and the next begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.cli.repl_cells import CellReader, CellSplitter

pytestmark = pytest.mark.any_user


def split(text: str) -> list[str]:
    splitter = CellSplitter()
    cells = [cell for line in text.split("\n") for cell in splitter.feed(line)]
    return [*cells, *splitter.finish()]


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("", []),
        ("\n\n", []),
        ("x = 1\nx", ["x = 1", "x"]),
        ("f(\n1,\n\n2)\nx", ["f(\n1,\n\n2)", "x"]),
        ("x = 1 + \\\n2", ["x = 1 + \\\n2"]),
        ("'''a\n\nb'''\nc", ["'''a\n\nb'''", "c"]),
        ("def f():\n    a\n\n    b\nf()", ["def f():\n    a\n\n    b", "f()"]),
        ("def f():\n    a\n# note\n    b\nf()", ["def f():\n    a\n# note\n    b", "f()"]),
        ("if a:\n  b\nelse:\n  c\nd", ["if a:\n  b\nelse:\n  c", "d"]),
        ("try:\n  a\nexcept E:\n  b\nfinally:\n  c", ["try:\n  a\nexcept E:\n  b\nfinally:\n  c"]),
        ("@wraps\ndef f(): pass\nf()", ["@wraps\ndef f(): pass", "f()"]),
        ("class A:\n  x = 1\nclass B:\n  y = 2", ["class A:\n  x = 1", "class B:\n  y = 2"]),
        ("%%bash\nls\n\nx", ["%%bash\nls\n", "x"]),
        ("!ls\nx?\n%time x", ["!ls", "x?", "%time x"]),
        ("a b\nc", ["a b", "c"]),
        ("print(", ["print("]),
    ],
)
def test_cells_are_what_a_person_would_call_so(text: str, cells: list[str]) -> None:
    assert [cell.rstrip() for cell in split(text)] == [cell.rstrip() for cell in cells]


def test_a_simple_statement_does_not_wait_for_the_next_line() -> None:
    splitter = CellSplitter()
    assert splitter.feed("x = 1") == ["x = 1"]
    assert splitter.feed("def f():") == []
    assert splitter.feed("    return x") == []
    assert splitter.feed("f()") == ["def f():\n    return x", "f()"]


@given(some.lists(some.sampled_from(
    ["", "x", "def f():", "    x", "else:", "(", ")", "'''", "# c", "@d", "%%bash", "!ls", "\\", "\t", "é"]
), max_size=12))  # fmt: skip
def test_no_line_is_lost_or_moved(lines: list[str]) -> None:
    given_lines = [line for line in lines if line.strip()]
    told = [line for cell in split("\n".join(lines)) for line in cell.split("\n") if line.strip()]
    assert told == given_lines


def test_the_next_line_is_indented_as_it_has_to_be() -> None:
    reader = CellReader()
    assert reader.indent("def f():") == 4
    assert reader.indent("if a:\n    for b in c:") == 8
    assert not reader.is_whole("def f():\n    return 1")
    assert reader.is_whole("def f():\n    return 1\n    ")
    assert reader.is_whole("x = 1")
