"""Cells of Julia: what they print and show, what they keep, and how they end."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.errors import Unsupported
from atoll.model.kernel import TABLE_FORM, Cell, CellStatus
from atoll.node.templates import Templates
from tests.kernels.interrupts import interrupted
from tests.kernels.julia_presence import needs_julia

pytestmark = [needs_julia, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def sandbox(engine: str) -> Iterator[Sandbox]:
    """A sandbox that has a Julia; most tests share one session, which takes a while to start."""
    with Sandbox(template="julia", engine=engine) as sandbox:
        yield sandbox


@pytest.fixture
def fresh(sandbox: Sandbox) -> Sandbox:
    """The sandbox, without sessions so far."""
    for kernel in sandbox.kernels.list():
        sandbox.kernels.close(kernel.id)
    return sandbox


def run(sandbox: Sandbox, *cells: str, timeout: float = 60.0) -> Cell:
    """Run cells one after the other; return what came of the last."""
    for code in cells[:-1]:
        sandbox.run_code(code, timeout=timeout).check()
    return sandbox.run_code(cells[-1], timeout=timeout)


# --- values ---------------------------------------------------------------------------------------------------

# What is run, one cell after the other, and the text of the last one's value.
VALUES = {
    "a number": (["1 + 1"], "2"),
    "a fraction": (["1 // 3"], "1//3"),
    "a large number": (["big(2)^70"], "1180591620717411303424"),
    "a text": (["\"a\\\"b\""], '"a\\"b"'),
    "a letter": (["'x'"], "'x': ASCII/Unicode U+0078 (category Ll: Letter, lowercase)"),
    "a symbol": ([":name"], ":name"),
    "a tuple": (["(1, \"x\")"], '(1, "x")'),
    "named parts": (["(a = 1, b = 2)"], "(a = 1, b = 2)"),
    "a range": (["1:3"], "1:3"),
    "a missing value": (["missing"], "missing"),
    "a type": (["Int"], "Int64"),
    "a function": (["shown(x) = x"], "shown (generic function with 1 method)"),
    "the last value": (["6 * 7", "ans + 1"], "43"),
    "an assignment": (["assigned = 5"], "5"),
    "the last of several": (["1; 2\n3"], "3"),
    "of a block": (["begin\n  y1 = 2\n  y1 * 2\nend"], "4"),
    "a remark behind it": (["5 # ;"], "5"),
    "a semicolon in a text": (["\"a;\""], '"a;"'),
    "unicode": (["\"é世𝄞\""], '"é世𝄞"'),
    "names of other scripts": (["größe = 3; Δ = 1", "größe + Δ"], "4"),
    "the number of characters": (["length(\"é世𝄞\")"], "3"),
    "a function over cells": (["sq(x) = x^2", "sq(3)"], "9"),
    "a function redefined": (["redone() = 1", "callit() = redone()", "redone() = 2", "callit()"], "2"),
    "a macro": (["macro twice(x) :(2 * $(esc(x))) end", "@twice 4"], "8"),
    "a struct": (["struct Point; x::Int; y::Int; end", "Point(1, 2)"], "Point(1, 2)"),
    "a mutable struct": (["mutable struct Box; n; end; box = Box(1)", "box.n += 1", "box"], "Box(2)"),
    "a struct declared again as it was": (["struct Same; x; end", "struct Same; x; end; Same(1)"], "Same(1)"),
    "a module": (["module Inner\nexport seven\nseven() = 7\nend", "using .Inner", "seven()"], "7"),
    "a loop assigns outside": (["total = 0", "for i in 1:3\n  total += i\nend\ntotal"], "6"),
    "a while loop assigns outside": (["down = 3; while down > 0\n  down -= 1\nend", "down"], "0"),
    "a try assigns outside": (["tried = 0", "try\n  tried = 1\nfinally\nend\ntried"], "1"),
    "a loop's own variables stay there": (["for i in 1:3\n  inside = i\nend", "@isdefined inside"], "false"),
    "the working directory": (["pwd()"], '"/workspace"'),
    "the home": (["homedir()"], '"/home/sandbox"'),
    "it is a session": (["isinteractive()"], "true"),
    "no arguments": (["ARGS"], "String[]"),
    "nothing of the kernel's among the names": (
        ["filter(each -> occursin(r\"(?i)atoll|kernel|host\", string(each)), names(Main; all = true))"], "Symbol[]"
    ),
    "a package: Statistics": (["using Statistics", "mean([1, 2, 6])"], "3.0"),
    "a package: LinearAlgebra": (["using LinearAlgebra", "det([1 2; 3 4])"], "-2.0"),
    "a package: Dates": (["using Dates", "Date(2024, 2, 29) + Day(1)"], "2024-03-01"),
    "a package: Random": (["using Random", "Random.seed!(1); first = rand(); Random.seed!(1); first == rand()"], "true"),
    "a program's output": (["read(`echo hi`, String)"], '"hi\\n"'),
    "tasks": (["fetch(@async 6 * 7)"], "42"),
    "a channel": (["c = Channel(1); @async put!(c, 5); take!(c)"], "5"),
    "a cell's own way to show": (
        ["struct Mood end", "Base.show(io::IO, ::Mood) = print(io, \":-)\")", "Mood()"], ":-)"
    ),
    "the name of the file": (["startswith(@__FILE__, \"cell \")"], "true"),
    "a value that is an expression": ([":(a + b)"], ":(a + b)"),
    "a symbol is no expression": (["held = :undefined_name", "held"], ":undefined_name"),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_the_last_value_is_the_result_as_julia_shows_it(sandbox: Sandbox, case: str) -> None:
    cells, text = VALUES[case]
    cell = run(sandbox, *cells).check()
    assert (cell.text, cell.stdout, cell.stderr) == (text, "", "")


# What versions of Julia word in their own ways: code, and what its value's text holds at least.
LARGER_VALUES = {
    "a list": ("[1, 2]", "2-element ", "\n 1\n 2"),
    "a long list in part": ("collect(1:1000)", "1000-element ", "\u22ee"),
    "a matrix": ("[1 2; 3 4]", "2×2 ", "\n 1  2\n 3  4"),
    "a dictionary": ('Dict("k" => 1)', "Dict{", '  "k" => 1'),
}


@pytest.mark.parametrize("case", LARGER_VALUES)
def test_a_larger_value_is_shown_as_in_a_session_of_julia(sandbox: Sandbox, case: str) -> None:
    code, beginning, part = LARGER_VALUES[case]
    text = run(sandbox, code).check().text or ""
    assert text.startswith(beginning)
    assert part in text


# What is run, and what it prints on each stream; none of it has a value to show.
PRINTED = {
    "nothing": ("nothing", "", ""),
    "a semicolon": ("5;", "", ""),
    "a semicolon and a remark": ("5; # five; or so", "", ""),
    "a semicolon and a longer remark": ("5; #= more\nof it =#\n", "", ""),
    "a loop": ("for i in 1:3 i end", "", ""),
    "println": ("println(1, ' ', \"x\")", "1 x\n", ""),
    "without a new line": ('print("a"); print("b")', "ab", ""),
    "standard error": ('println(stderr, "e")', "", "e\n"),
    "printf": ("using Printf; @printf(\"%.2f\\n\", pi)", "3.14\n", ""),
    "show": ('show("x"); nothing', '"x"', ""),
    "a warning": ('@warn "careful"', "", "Warning: careful"),
    "a program": ("run(`echo sub`);", "sub\n", ""),
    "a program's errors": ("run(`sh -c 'echo sub >&2'`);", "", "sub\n"),
    "a program in its place": ('print("a "); run(`echo b`); print("c")', "a b\nc", ""),
    "a pipeline": ("run(pipeline(`echo abc`, `tr a-c A-C`));", "ABC\n", ""),
    "C": ('ccall(:puts, Cint, (Cstring,), "from C");', "from C\n", ""),
    "C in its place": (
        'ccall(:puts, Cint, (Cstring,), "1"); Libc.flush_cstdio(); println(2)', "1\n2\n", ""
    ),
    "bytes that are no text": ("write(stdout, [0x41, 0xff, 0x42]);", "A\ufffdB", ""),
    "unicode": ('print("é世𝄞")', "é世𝄞", ""),
    "an error that is caught": ('try error("no") catch; print("on") end', "on", ""),
    "a task": ('@sync @async print("later"); nothing', "later", ""),
    "a task that nobody waits for": ('@async print("soon"); nothing', "soon", ""),
    "a redirection": (
        'old = stdout; r, w = redirect_stdout(); print("in"); redirect_stdout(old); close(w); print("got ", read(r, String))',
        "got in",
        "",
    ),
    "remarks alone": ("# nothing", "", ""),
    "no code": ("", "", ""),
    "an import": ("import Base64", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", PRINTED)
def test_what_is_printed_goes_where_it_belongs(sandbox: Sandbox, case: str) -> None:
    code, stdout, stderr = PRINTED[case]
    cell = run(sandbox, code).check()
    assert (cell.results, cell.stdout) == ((), stdout)
    assert cell.stderr == stderr or (stderr and stderr in cell.stderr)


def test_output_comes_while_the_cell_runs(sandbox: Sandbox) -> None:
    seen: list[float] = []
    code = "println(1); sleep(1); println(2)"
    sandbox.run_code(code, on_stdout=lambda text: seen.append(time.monotonic())).check()
    assert len(seen) == 2
    assert seen[1] - seen[0] > 0.5


def test_what_a_cell_changes_in_the_workspace_is_told(sandbox: Sandbox) -> None:
    cell = sandbox.run_code('write("changed.txt", "x");', track_files=True)
    assert list(cell.check().files_changed or ()) == ["changed.txt"]


def test_files_of_the_workspace_are_included(sandbox: Sandbox) -> None:
    sandbox.files.write("lib/part.jl", "included() = basename(@__FILE__)\n")
    assert run(sandbox, 'include("lib/part.jl")', "included()").text == '"part.jl"'


# --- forms ------------------------------------------------------------------------------------------------------

# A type's own way to show itself, and the form that comes of it.
FORMS = {
    "html": ("text/html", 'print(io, "<b>x</b>")', "<b>x</b>"),
    "markdown": ("text/markdown", 'print(io, "# x")', "# x"),
    "latex": ("text/latex", 'print(io, "x^2")', "x^2"),
    "svg": ("image/svg+xml", 'print(io, "<svg/>")', "<svg/>"),
    "png": ("image/png", "write(io, [0x01, 0x02, 0xff])", "AQL/"),
    "jpeg": ("image/jpeg", "write(io, [0x01, 0x02, 0x03, 0x04])", "AQIDBA=="),
    "pdf": ("application/pdf", 'print(io, "%PDF")', "JVBERg=="),
    "json": ("application/json", 'print(io, "{\\"a\\": [1, null]}")', {"a": [1, None]}),
    "javascript": ("application/javascript", 'print(io, "1")', "1"),
    "vega": ("application/vnd.vegalite.v5+json", 'print(io, "{\\"mark\\": \\"bar\\"}")', {"mark": "bar"}),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMS)
def test_a_value_shows_itself_in_every_form_that_it_has(sandbox: Sandbox, case: str) -> None:
    kind, body, form = FORMS[case]
    name = f"Form{case}"
    code = f'struct {name} end\nBase.show(io::IO, ::MIME"{kind}", ::{name}) = {body}\n{name}()'
    cell = run(sandbox, code).check()
    (result,) = cell.results
    assert result.is_main
    assert result.data[kind] == form
    assert result.data["text/plain"] == f"{name}()"


def test_a_text_of_markdown_has_many_forms(sandbox: Sandbox) -> None:
    cell = run(sandbox, 'using Markdown\nmd"""\n# Title\n\n*x*\n"""').check()
    data = cell.results[0].data
    assert "<h1>Title</h1>" in data["text/html"]
    assert "# Title" in data["text/markdown"]
    assert "\\section{Title}" in data["text/latex"]


def test_a_form_that_fails_is_left_out_and_says_why(sandbox: Sandbox) -> None:
    code = 'struct Broken end\nBase.show(io::IO, ::MIME"text/html", ::Broken) = error("no page")\nBroken()'
    cell = run(sandbox, code).check()
    assert dict(cell.results[0].data) == {"text/plain": "Broken()"}
    assert cell.stderr == "(left out: text/html: no page)\n"


# A call, and the form that it shows.
SHOWN = {
    "a value": ("display([1.5])", "text/plain", "1-element "),
    "html": ('display("text/html", "<b>x</b>")', "text/html", "<b>x</b>"),
    "html as a value": ('display(HTML("<i>y</i>"))', "text/html", "<i>y</i>"),
    "a picture": ('display("image/png", UInt8[1, 2, 255])', "image/png", "AQL/"),
    "svg": ('display(MIME("image/svg+xml"), "<svg/>")', "image/svg+xml", "<svg/>"),
    "json": ('display("application/json", Dict("a" => [1, nothing, true]))', "application/json",
             {"a": [1, None, True]}),
    "any form": ('display("text/x-y", "z")', "text/x-y", "z"),
    "in a function": ("f_shows() = (display(5); nothing)\nf_shows()", "text/plain", "5"),
}  # fmt: skip


@pytest.mark.parametrize("case", SHOWN)
def test_a_cell_can_show_what_it_likes(sandbox: Sandbox, case: str) -> None:
    code, kind, value = SHOWN[case]
    cell = run(sandbox, code).check()
    (result,) = cell.results
    assert not result.is_main
    form = result.data[kind]
    assert form == value or (value == "1-element " and form.startswith(value))


def test_what_is_shown_has_its_place_in_what_is_printed(sandbox: Sandbox) -> None:
    seen: list[str] = []
    sandbox.run_code(
        'println("before"); display(1); println("between"); display(2); 3',
        # The end of a line may come by itself.
        on_stdout=lambda text: seen.extend(str(text).split()),
        on_result=lambda result: seen.append(str(result.data["text/plain"])),
    ).check()
    assert seen == ["before", "1", "between", "2", "3"]


# A package of that name and id, as small as one can be.
_TABLES = """
module Tables
istable(x) = x isa AbstractDict
columns(x) = x
columnnames(x) = sort(collect(keys(x)))
getcolumn(x, name) = x[name]
end
"""


def test_what_tables_takes_for_one_comes_as_data(fresh: Sandbox) -> None:
    project = 'name = "Tables"\nuuid = "bd369af6-aec1-5ad0-b16a-f7cc5008161c"\n'
    fresh.files.write("packages/Tables/Project.toml", project)
    fresh.files.write("packages/Tables/src/Tables.jl", _TABLES)
    cell = run(
        fresh,
        'push!(LOAD_PATH, "/workspace/packages"); using Tables',
        'Dict("n" => [1.5, missing], "s" => ["a", "é"], "i" => [1, 2], "b" => [true, false])',
    ).check()
    table = cell.results[0].data[TABLE_FORM]
    assert table["data"] == [
        {"index": 1, "b": True, "i": 1, "n": 1.5, "s": "a"},
        {"index": 2, "b": False, "i": 2, "n": None, "s": "é"},
    ]
    types = {field["name"]: field["type"] for field in table["schema"]["fields"]}
    assert types == {
        "index": "integer",
        "b": "boolean",
        "i": "integer",
        "n": "number",
        "s": "string",
    }
    facts = cell.results[0].metadata[TABLE_FORM]
    assert facts == {"rows": 2, "columns": 4, "truncated": False}
    assert TABLE_FORM not in run(fresh, "5").results[0].data


# --- errors -----------------------------------------------------------------------------------------------------

# A cell that fails: the type of its error, a part of its message, and a part of what tells where.
ERRORS = {
    "at the top": ('error("no")', "ErrorException", "no", "top-level scope"),
    "in a function": ('g_fails(x) = error("no: ", x)\nf_fails(x) = g_fails(x + 1)\nf_fails(1)', "ErrorException",
                      "no: 2", "g_fails"),
    "an unknown name": ("nowhere_defined", "UndefVarError", "nowhere_defined", ""),
    "no such method": ('1 + "x"', "MethodError", "no method matching +", ""),
    "a wrong place": ("[1][2]", "BoundsError", "at index [2]", "getindex"),
    "a missing key": ("Dict()[:k]", "KeyError", "key :k not found", "getindex"),
    "an impossible number": ("sqrt(-1)", "DomainError", "-1", "sqrt"),
    "a failed assertion": ("@assert 1 == 2", "AssertionError", "1 == 2", "top-level scope"),
    "a division": ("1 ÷ 0", "DivideError", "integer division error", "div"),
    "an own error": ("struct Own <: Exception end; Base.showerror(io::IO, e::Own) = print(io, :own)\nthrow(Own())", "Own",
                     "own", "top-level scope"),
    "something thrown": ('throw("text")', "String", "text", "top-level scope"),
    "a missing file": ('read("/nowhere")', "SystemError", "/nowhere", "read"),
    "a missing package": ("using NotThere", "ArgumentError", "NotThere", ""),
    "a failed program": ("run(`false`)", "ProcessFailedException", "false", "run"),
    "a type declared otherwise": ("struct Twice; x; end", "ErrorException", "invalid redefinition of constant", ""),
    "another type of a constant": ("const CONSTANT = 1\nCONSTANT = \"x\"", "ErrorException",
                                   "invalid redefinition of constant CONSTANT", ""),
    "code that is none": ("x = 1\nx y", "ParseError", "y", ""),
    "code that does not end": ("f(1,", "ParseError", "", ""),
    "a text that does not end": ('"abc', "ParseError", "", ""),
    "leaving the process": ("exit(3)", "ProcessExit", "exit(3) ended this cell; its kernel lives on", ""),
    "leaving it with nothing to say": ("exit()", "ProcessExit", "exit(0) ended this cell", ""),
    "showing the value": ('struct Bad end\nBase.show(io::IO, ::Bad) = error("in show")\nBad()', "ErrorException",
                          "in show", "show"),
    "a task": ("fetch(@async error(\"within\"))", "TaskFailedException", "within", "fetch"),
    "an error of errors": ('struct Odd <: Exception end\nBase.showerror(io::IO, ::Odd) = error("again")\nthrow(Odd())',
                           "Odd", "its text cannot be made", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_tells_its_type_and_how_it_came_about(sandbox: Sandbox, case: str) -> None:
    code, name, value, place = ERRORS[case]
    if case == "a type declared otherwise":
        run(sandbox, "struct Twice end").check()
    cell = run(sandbox, code)
    assert cell.status is CellStatus.ERROR
    assert cell.error is not None
    assert cell.error.name == name
    assert value in cell.error.value
    text = "\n".join(cell.error.traceback)
    assert text.startswith("ERROR: ")
    assert place in text
    # The kernel's own calls are nobody's business, and it lives on.
    assert "atoll" not in text.lower() and "boot.jl" not in text
    assert run(sandbox, '"on"').text == '"on"'


def test_a_mistake_in_a_cell_keeps_all_of_it_from_running(sandbox: Sandbox) -> None:
    cell = run(sandbox, 'println("ran")\nx y')
    assert (cell.status, cell.stdout) == (CellStatus.ERROR, "")


def test_an_error_names_the_cells_and_lines_that_it_came_from(fresh: Sandbox) -> None:
    cell = run(fresh, 'inner() = error("no")', "\ninner()")
    assert cell.error is not None
    text = "\n".join(cell.error.traceback)
    assert "cell 1:1" in text
    assert "cell 2:2" in text


def test_an_error_in_a_file_is_told_as_what_it_is(sandbox: Sandbox) -> None:
    sandbox.files.write("bad.jl", '\nerror("in the file")\n')
    cell = run(sandbox, 'include("bad.jl")')
    assert cell.error is not None
    assert (cell.error.name, cell.error.value) == ("ErrorException", "in the file")
    assert "bad.jl:2" in "\n".join(cell.error.traceback)


def test_what_led_to_an_error_is_told_too(sandbox: Sandbox) -> None:
    cell = run(sandbox, 'try\n  error("first")\ncatch\n  error("second")\nend')
    assert cell.error is not None
    assert cell.error.value == "second"
    assert "caused by: first" in cell.error.traceback


def test_what_a_cell_did_before_its_error_stays(sandbox: Sandbox) -> None:
    cell = run(sandbox, 'before = 1\nprintln("out")\ndisplay(7)\nerror("no")\nbefore = 2')
    assert (cell.status, cell.stdout) == (CellStatus.ERROR, "out\n")
    assert [each.data["text/plain"] for each in cell.results] == ["7"]
    assert run(sandbox, "before").text == "1"


def test_endless_recursion_is_an_error(sandbox: Sandbox) -> None:
    cell = run(sandbox, "endless(n) = endless(n + 1) + 1", "endless(1)")
    assert cell.error is not None
    assert cell.error.name == "StackOverflowError"
    assert len(cell.error.traceback) <= 101
    assert run(sandbox, "2").text == "2"


def test_too_much_memory_at_once_is_an_error(sandbox: Sandbox) -> None:
    cell = run(sandbox, "zeros(10^15)")
    assert cell.error is not None
    assert cell.error.name == "OutOfMemoryError"


# --- input ------------------------------------------------------------------------------------------------------

# A cell that asks, what it is told, and what comes of it.
INPUTS = {
    "a line": ("readline()", ["Ada"], '"Ada"'),
    "by its name": ("readline(stdin)", ["Ada"], '"Ada"'),
    "an empty line": ("readline()", [""], '""'),
    "two lines": ('readline() * "+" * readline()', ["x", "y"], '"x+y"'),
    "all lines": ('join(readlines(), "+")', ["one", "two"], '"one+two"'),
    "each line": ("[length(line) for line in eachline()] == [1, 2]", ["a", "bc"], "true"),
    "all of it": ("read(stdin, String)", ["one", "two"], '"one\\ntwo\\n"'),
    "a number": ("parse(Int, readline()) + 1", ["41"], "42"),
    "unicode": ("length(readline())", ["é世𝄞"], "3"),
    "a secret": ('read(Base.getpass("word"), String)', ["s3"], '"s3"'),
    "nobody is there": ("readline()", [], '""'),
    "nobody is there for the end": ("eof(stdin)", [], "true"),
    "programs have none": ("read(`cat`, String)", ["not for it"], '""'),
}


@pytest.mark.parametrize("case", INPUTS)
def test_a_cell_asks_for_input(sandbox: Sandbox, case: str) -> None:
    code, lines, text = INPUTS[case]
    answers = iter(lines)
    cell = sandbox.run_code(code, on_input=lambda prompt, secret: next(answers, None), timeout=60)
    assert cell.check().text == text


def test_what_was_printed_is_seen_before_the_question(sandbox: Sandbox) -> None:
    seen: list[str] = []

    def answer(prompt: str, secret: bool) -> str:
        seen.append(f"asked {secret}")
        return "x"

    code = 'print("name? "); readline(); Base.getpass("word");'
    sandbox.run_code(code, on_stdout=lambda text: seen.append(str(text)), on_input=answer).check()
    assert seen == ["name? ", "asked False", "asked True"]


# --- the end of cells -------------------------------------------------------------------------------------------

# What goes on for ever, and heeds an interrupt with all that the session has kept.
ENDLESS = {
    "sleep": "sleep(1000)",
    "a loop": "while true end",
    "a loop in a function": "function spin()\n  n = 0\n  while true\n    n = (n + 1) % 7\n  end\nend\nspin()",
    "a loop with work": "while true; global worked = sort(rand(1000)); end",
    "a program": "run(`sleep 1000`)",
    "a program that is read": "read(`sleep 1000`, String)",
    "programs one after the other": "while true; run(`true`); end",
    "printing": 'while true; println("y"); end',
    "showing": "while true; display(1); end",
    "tasks": "@sync begin\n  @async sleep(1000)\n  @async sleep(1000)\nend",
    "beside a busy task": "@async while true; sleep(0.02); end\nsleep(1000)",
    "a condition": "wait(Condition())",
    "a channel": "take!(Channel())",
    "a lock": "let held = ReentrantLock(); @async (lock(held); sleep(1000)); yield(); lock(held); end",
    "a socket": "using Sockets; accept(listen(4000))",
    "errors that are caught": 'while true; try error("again") catch e; e isa InterruptException && rethrow() end; end',
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_timeout_ends_a_cell_and_keeps_the_kernel(
    sandbox: Sandbox, case: str, patient: None
) -> None:
    run(sandbox, "kept = 5").check()
    cell = run(sandbox, ENDLESS[case], timeout=1.5)  # it never ends by itself
    assert cell.status is CellStatus.TIMED_OUT, cell.death
    assert cell.error is not None
    assert (cell.error.name, cell.error.value) == ("InterruptException", "interrupted")
    assert run(sandbox, "kept").text == "5"


def test_an_interrupt_ends_a_cell(sandbox: Sandbox, patient: None) -> None:
    run(sandbox, "step = 1").check()
    kernel = sandbox.kernels.list()[0].id
    code = 'step = 2; try\n  println("up"); sleep(100)\nfinally\n  println("tidied")\nend; step = 3'
    cell = interrupted(sandbox, code, kernel)
    assert (cell.status, cell.stdout) == (CellStatus.INTERRUPTED, "up\ntidied\n")
    assert run(sandbox, "step").text == "2"


def test_a_cell_that_waits_for_input_can_be_interrupted(sandbox: Sandbox) -> None:
    run(sandbox, "1").check()
    kernel = sandbox.kernels.list()[0].id
    entered = threading.Event()

    def never(prompt: str, secret: bool) -> str:
        sandbox.kernels.interrupt(kernel)
        entered.set()
        time.sleep(0.5)
        return "late"

    cell = sandbox.run_code("readline()", on_input=never, timeout=60)
    assert entered.is_set()
    assert cell.status in (CellStatus.INTERRUPTED, CellStatus.OK)
    assert run(sandbox, '"on"').text == '"on"'


def test_an_interrupt_between_cells_reaches_none(sandbox: Sandbox) -> None:
    code = 'run(`sh -c "(sleep 0.3; kill -INT $(getpid())) >/dev/null 2>&1 &"`); calm = 1'
    run(sandbox, code).check()
    time.sleep(0.6)
    assert run(sandbox, "calm").text == "1"


def test_a_cell_that_does_not_heed_its_timeout_loses_its_kernel(fresh: Sandbox) -> None:
    begun = time.monotonic()
    cell = run(fresh, "while true; try sleep(1) catch; end; end", timeout=2)
    assert cell.status is CellStatus.DIED
    assert time.monotonic() - begun < 60
    assert run(fresh, "1").text == "1"


# How a kernel ends, and the word that tells.
DEATHS = {
    "a signal": ("run(`kill -9 $(getpid())`); sleep(10)", "SIGKILL"),
    "C's way out": ("ccall(:abort, Cvoid, ())", "SIGABRT"),
    "a way past the kernel": ("ccall(:_exit, Cvoid, (Cint,), 7)", "7"),
}


@pytest.mark.parametrize("case", DEATHS)
def test_a_death_is_told_and_the_next_cell_has_a_new_kernel(sandbox: Sandbox, case: str) -> None:
    code, word = DEATHS[case]
    cell = run(sandbox, 'lost = 1; write("kept.txt", "f")', code)
    assert cell.status is CellStatus.DIED
    assert word in cell.death
    assert run(sandbox, "@isdefined lost").text == "false"
    assert run(sandbox, 'read("kept.txt", String)').text == '"f"'


def test_a_kernel_can_be_restarted(sandbox: Sandbox) -> None:
    run(sandbox, "gone = 1").check()
    sandbox.kernels.restart(sandbox.kernels.list()[0].id)
    assert run(sandbox, "@isdefined gone").text == "false"


# --- sessions ---------------------------------------------------------------------------------------------------


def test_kernels_of_one_sandbox_are_apart(sandbox: Sandbox) -> None:
    run(sandbox, "mine = 1").check()
    other = sandbox.kernels.open("julia", cwd="/tmp", envs={"A_NAME": "größer"})
    cell = sandbox.run_code('pwd(), ENV["A_NAME"], @isdefined(mine)', kernel=other.id)
    assert cell.check().text == '("/tmp", "größer", false)'
    sandbox.kernels.close(other.id)
    assert run(sandbox, "mine").text == "1"


def test_a_language_is_named_in_other_ways(sandbox: Sandbox) -> None:
    run(sandbox, "spoken = 5").check()
    assert sandbox.run_code("spoken", language="jl").text == "5"
    assert sandbox.run_code("echo $0", language="bash").stdout == "bash\n"


def test_a_file_is_run_as_a_program(sandbox: Sandbox) -> None:
    sandbox.files.write("program.jl", "println(sum(parse.(Int, ARGS)))")
    result = sandbox.commands.run("julia program.jl 1 2")
    assert (result.exit_code, result.stdout) == (0, b"3\n")


def test_a_pool_has_its_julia_running(engine: str) -> None:
    Sandbox.warm(1, template="julia", engine=engine)
    try:
        with Sandbox(template="julia", engine=engine) as warm:
            (kernel,) = warm.kernels.list()
            assert kernel.language == "julia"
            cell = warm.run_code("early = 1")
            assert (cell.text, cell.execution_count) == ("1", 1)
            assert warm.run_code("@isdefined each").text == "false"
    finally:
        Sandbox.warm(0, template="julia", engine=engine)


# --- much -------------------------------------------------------------------------------------------------------


def test_ten_megabytes_of_output_do_no_harm(sandbox: Sandbox) -> None:
    cell = run(sandbox, 'print("0123456789"^10^6); "done"').check()
    assert cell.text == '"done"'
    assert len(cell.stdout) == 1 << 20
    assert cell.truncated


def test_a_very_long_value_is_cut(sandbox: Sandbox) -> None:
    cell = run(sandbox, 'HTML("x"^20_000_000)').check()
    assert "left out: text/html" in (cell.text or "")
    cell = run(
        sandbox, 'struct Long end\nBase.show(io::IO, ::Long) = print(io, "x"^20_000_000)\nLong()'
    )
    assert cell.text is not None
    assert "(cut: 20000000 characters in all)" in cell.text
    assert len(cell.text) < 8 << 20


def test_many_lines_are_printed_in_order(sandbox: Sandbox) -> None:
    cell = run(sandbox, "for i in 1:20000 println(i) end").check()
    assert cell.stdout == "".join(f"{i}\n" for i in range(1, 20001))


def test_forms_that_are_no_json_do_no_harm(sandbox: Sandbox) -> None:
    deep = 'display("application/json", foldl((a, _) -> Any[a], 1:1000; init = Any[]))'
    assert "nested" in str(run(sandbox, deep).check().results[0].data)
    invalid = 'display("text/html", String([0x41, 0xff, 0x0a, 0x22]))'
    assert run(sandbox, invalid).check().results[0].data["text/html"] == 'A\ufffd\n"'
    assert run(sandbox, '"\\0\\x1b"').check().text == '"\\0\\e"'


def test_a_picture_of_many_bytes_arrives_whole(sandbox: Sandbox) -> None:
    code = 'display("image/png", repeat(UInt8[0:255;], 4096))'
    (result,) = run(sandbox, code).check().results
    assert base64.b64decode(str(result.data["image/png"])) == bytes(range(256)) * 4096


# --- the template -----------------------------------------------------------------------------------------------


def test_a_machine_without_julia_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="there is no Julia on this machine; unpack version"):
        Templates(tmp_path).julia(path=str(tmp_path))


def _make_home(home: Path) -> Path:
    """Make what looks like a Julia, as a script that says where it lives."""
    program = home / "bin" / "julia"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho {program.parent}\n")
    program.chmod(0o700)
    for name in (
        "lib/julia/sys.so",
        "share/julia/base/Base.jl",
        "share/julia/test/runtests.jl",
        "private/key",
    ):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(0o600)
    return program


def test_the_home_of_the_julia_on_the_path_is_copied(tmp_path: Path) -> None:
    program = _make_home(tmp_path / "julia-1.10")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "julia").symlink_to(program)
    templates = Templates(tmp_path / "data")
    tree = templates.julia(path=str(tmp_path / "bin"))
    copied = sorted(
        str(each.relative_to(tree.path)) for each in tree.path.rglob("*") if each.is_file()
    )
    assert copied == ["bin/julia", "lib/julia/sys.so", "share/julia/base/Base.jl"]
    assert (tree.path / "bin/julia").stat().st_mode & 0o777 == 0o755
    # Sandboxes are other users.
    assert (tree.path / "lib/julia/sys.so").stat().st_mode & 0o444 == 0o444
    assert templates.julia(path=str(tmp_path / "bin")) == tree


def test_a_julia_that_does_not_run_is_none(tmp_path: Path) -> None:
    program = tmp_path / "julia"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(Unsupported, match="does not run"):
        Templates(tmp_path / "data").julia(path=str(tmp_path))
