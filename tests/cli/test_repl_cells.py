"""Where one cell ends and the next begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.cli.repl_cells import CellSplitter, PythonReader, make_reader

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
    reader = PythonReader()
    assert reader.indent("def f():") == 4
    assert reader.indent("if a:\n    for b in c:") == 8
    assert not reader.is_whole("def f():\n    return 1")
    assert reader.is_whole("def f():\n    return 1\n    ")
    assert reader.is_whole("x = 1")


WHOLE = {
    "bash": [
        "echo 'a'", "if true; then echo; fi", "for i in 1 2; do echo $i; done", "case x in (x) echo;; esac",
        "f() { echo; }", "x=$(ls)", 'echo "a $(b) c"', "echo done", "echo \\'", "# 'open", "a=b#'c'", "ls | wc -l",
        "echo if-not", "echo ${x[0]}", "while true; do\n\n",
    ],
    "node": ["f({a: [1]})", "const s = `a ${b}`", "// (", "/* ( */ 1", "'it\\'s'", "x = {\n\n", "1"],
    "r": ["f <- function(x) { x }", "x <- 'a)'", "# (", "c(1, 2)", 'x[["a"]]'],
    "julia": [
        "x = 1", "f(x) = x^2", "function f(x)\n  x\nend", "if a\n  1\nelse\n  2\nend", "[x for x in 1:3 if x > 1]",
        "a[end]", "a[1:end]", "sum(x for x in 1:3)", "A' * 'x'", "'\\''", '"a (b"', '"""\n(\n"""', "# (", "#= ( =# 1",
        "map(1:3) do x\n  x\nend", "mutable struct P\n  x\nend", "abstract type A end", ":function", "x.end", "a[begin]",
        "module M\nusing Base: end_of\nend", "`echo (`", "f(function (x)\n  x\nend)", "if_else = 1", "endless = 1",
    ],
}  # fmt: skip
UNFINISHED = {
    "bash": [
        "echo 'a", 'echo "a', "if true; then", "for i in 1; do", "f() {", "x=$(ls", "echo a \\", "case x in",
        "echo `ls", "while :; do if x; then",
    ],
    "node": ["const f = () => {", "`abc", "foo(1,", "[1,\n2", "if (x) {"],
    "r": ["f <- function(x) {", "c(1,", "'abc", "x[["],
    "julia": [
        "function f(x)", "if a\n  1", "for i in 1:3", "begin", "f(1,", "[1,", '"abc', '"""\nabc', "#= abc", "`echo",
        "map(1:3) do x", "struct P", "mutable struct P\n  x", "a[end", "let x = 1", "f(function (x)\n  x[end]",
        "function f()\n  a[end]", "try\n  1\ncatch",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("language", "code"), [(x, code) for x in WHOLE for code in WHOLE[x]])
def test_code_of_other_languages_is_whole_when_all_is_closed(language: str, code: str) -> None:
    assert make_reader(language).is_whole(code)


@pytest.mark.parametrize(
    ("language", "code"), [(x, code) for x in UNFINISHED for code in UNFINISHED[x]]
)
def test_code_of_other_languages_goes_on_while_something_is_open(language: str, code: str) -> None:
    reader = make_reader(language)
    assert not reader.is_whole(code)
    # Whatever is misjudged, an empty line ends it.
    assert reader.is_whole(f"{code}\n\n")


def test_open_parts_are_indented() -> None:
    assert make_reader("node").indent("f(() => {") == 4
    assert make_reader("bash").indent("for i in 1; do") == 2
    assert make_reader("r").indent("x") == 0
    assert make_reader("julia").indent("function f()\n    for i in 1:3") == 8
