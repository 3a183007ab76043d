"""Cells of R: what they print and show, what they keep, and how they end."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from atoll import Sandbox
from atoll.model.kernel import TABLE_FORM, Cell, CellStatus
from tests.kernels.interrupts import interrupted
from tests.kernels.r_presence import needs_r

pytestmark = needs_r

_PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def sandbox(engine: str) -> Iterator[Sandbox]:
    """A sandbox whose kernels are forked from a warm R."""
    with Sandbox(template="r", engine=engine) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def _fresh(sandbox: Sandbox) -> Iterator[None]:
    """Give each test a kernel of its own."""
    yield
    for kernel in sandbox.kernels.list():
        sandbox.kernels.close(kernel.id)


def run(sandbox: Sandbox, *cells: str, timeout: float = 30.0) -> Cell:
    """Run cells one after the other; return what came of the last."""
    for code in cells[:-1]:
        sandbox.run_code(code, timeout=timeout).check()
    return sandbox.run_code(cells[-1], timeout=timeout)


# What is run, one cell after the other, and the text of the last one's value.
VALUES = {
    "a number": (["1 + 1"], "[1] 2"),
    "a text": (["'a\"b'"], '[1] "a\\"b"'),
    "a truth value": (["TRUE & NA"], "[1] NA"),
    "nothing": (["NULL"], "NULL"),
    "a vector": (["1:3"], "[1] 1 2 3"),
    "names": (["c(a = 1, b = 2)"], "a b \n1 2 "),
    "a factor": (["factor(c('x', 'y'))"], "[1] x y\nLevels: x y"),
    "a list": (["list(1, b = 'x')"], '[[1]]\n[1] 1\n\n$b\n[1] "x"\n'),
    "a complex number": (["1i^2"], "[1] -1+0i"),
    "a date": (["as.Date('2024-02-29') + 1"], '[1] "2024-03-01"'),
    "a function shows its source": (["f <- function(x) {\n  x + 1  # more\n}", "f"],
                                    "function(x) {\n  x + 1  # more\n}"),
    "a formula": (["y ~ x + 1"], "y ~ x + 1"),
    "a call": (["quote(f(x, 2))"], "f(x, 2)"),
    "digits": (["options(digits = 3)", "pi"], "[1] 3.14"),
    "a cell's own way to print": (
        ["print.money <- function(x, ...) cat('$', unclass(x), '\\n')", "structure(5, class = 'money')"],
        "$ 5 ",
    ),
    "a cell's own way to format": (
        ["format.mood <- function(x, ...) ':-)'; print.mood <- function(x, ...) cat(format(x))",
         "structure(1, class = 'mood')"],
        ":-)",
    ),
    "an S4 object with its own show": (
        ["setClass('P', representation(x = 'numeric'))",
         "setMethod('show', 'P', function(object) cat('<P', object@x, '>\\n'))", "new('P', x = 3)"],
        "<P 3 >",
    ),
    "an S4 object without": (
        ["setClass('Q', representation(x = 'numeric'))", "new('Q', x = 3)"],
        'An object of class "Q"\nSlot "x":\n[1] 3\n',
    ),
    "a reference object": (
        ["A <- setRefClass('A', fields = list(n = 'numeric'), methods = list(up = function() { n <<- n + 1 }))",
         "a <- A$new(n = 1); a$up(); a$up()", "a$n"],
        "[1] 3",
    ),
    "an environment's content": (["e <- new.env(); assign('k', 7, e)", "get('k', e)"], "[1] 7"),
    "parentheses make visible": (["(x <- 5)"], "[1] 5"),
    "a print method of print itself": (["x <- print('once')", "x"], '[1] "once"'),
    "a summary": (["summary(c(1, 2, 3))"],
                  "   Min. 1st Qu.  Median    Mean 3rd Qu.    Max. \n    1.0     1.5     2.0     2.0     2.5     3.0 "),
    "the last value": (["6 * 7", ".Last.value + 1"], "[1] 43"),
    "a table": (["table(c('a', 'b', 'a'))"], "\na b \n2 1 "),
    "unicode": (["'é世𝄞'"], '[1] "é世𝄞"'),
    "the number of characters": (["nchar('é世𝄞')"], "[1] 3"),
    "names of other scripts": (["größe <- 3", "größe"], "[1] 3"),
    "the locale": (["l10n_info()[['UTF-8']]"], "[1] TRUE"),
    "pipes and short functions": (["c(4, 9) |> sapply(FUN = \\(x) sqrt(x))"], "[1] 2 3"),
    "the working directory": (["getwd()"], '[1] "/workspace"'),
    "who it is": (["Sys.info()[['user']]"], '[1] "sandbox"'),
    "it is a session": (["interactive()"], "[1] TRUE"),
    "nothing of the kernel's in the workspace": (["ls(all.names = TRUE)"], "character(0)"),
    "byte code": (["f <- compiler::cmpfun(function(n) sum(seq_len(n)))", "f(4)"], "[1] 10"),
    "regular expressions": (["gsub('[aeiou]', '_', 'banana')"], '[1] "b_n_n_"'),
    "a fitted model": (["m <- lm(dist ~ speed, cars)", "round(coef(m), 2)"],
                       "(Intercept)       speed \n     -17.58        3.93 "),
    "matrices are multiplied": (["matrix(1:4, 2) %*% c(1, 1)"], "     [,1]\n[1,]    4\n[2,]    6"),
    "a name that the kernel uses itself": (["native <- 1; state <- 2; execute <- 3", "native + state"], "[1] 3"),
    "base functions that a cell replaces": (["print <- function(...) stop('no'); cat <- print", "1"], "[1] 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_the_last_value_is_the_result_as_r_prints_it(sandbox: Sandbox, case: str) -> None:
    cells, text = VALUES[case]
    cell = run(sandbox, *cells).check()
    assert (cell.text, cell.stdout, cell.stderr) == (text, "", "")


# What is run, and what it prints on each stream; none of it has a value to show.
PRINTED = {
    "an assignment": ("x <- 5", "", ""),
    "an invisible value": ("invisible(5)", "", ""),
    "a function that returns one": ("f <- function() invisible(3)\nf()", "", ""),
    "a loop": ("for (i in 1:3) i", "", ""),
    "print": ("print(1:3)", "[1] 1 2 3\n", ""),
    "cat": ("cat('a', 1, TRUE, sep = '-')", "a-1-TRUE", ""),
    "a message": ("message('careful')", "", "careful\n"),
    "a warning at the top": ("warning('hm')", "", "Warning message:\nhm\n"),
    "a warning of a function": (
        "f <- function(x) warning('hm')\nx <- f(1)", "", "Warning message:\nIn f(1) : hm\n"
    ),
    "several warnings": (
        "for (w in c('a', 'b')) warning(w)", "", "Warning messages:\n1: a\n2: b\n"
    ),
    "many warnings": (
        "for (i in 1:12) warning(i)", "", "There were 12 warnings (use warnings() to see them)\n"
    ),
    "very many warnings": (
        "for (i in 1:60) warning(i)",
        "",
        "There were 50 or more warnings (use warnings() to see the first 50)\n",
    ),
    "a long warning": (
        f"f <- function() warning('{'long ' * 15}')\nx <- f()",
        "",
        f"Warning message:\nIn f() :\n  {'long ' * 15}\n",
    ),
    "warnings at once": ("options(warn = 1)\nwarning('now')", "", "Warning: now\n"),
    "suppressed warnings": ("suppressWarnings(x <- as.integer('x'))", "", ""),
    "caught warnings": (
        "x <- tryCatch(warning('w'), warning = conditionMessage)\ncat(x)",
        "w",
        "",
    ),
    "a coercion": ("x <- as.integer('x')", "", "Warning message:\nNAs introduced by coercion\n"),
    "to standard error": ("write('e', stderr())", "", "e\n"),
    "a program's output": ("cat('a')\ncode <- system('echo b; echo c >&2')\ncat('d')", "ab\nd", "c\n"),
    "captured output": ("x <- capture.output(print(5))\ncat(x)", "[1] 5", ""),
    "a sink": ("sink('/tmp/s')\nprint(1)\nsink()\ncat(readLines('/tmp/s'))", "[1] 1", ""),
    "an error that is caught": ("try(stop('no'), silent = TRUE)\ncat('on')", "on", ""),
    "an error that try tells": ("f <- function() stop('no')\nx <- try(f())", "", "Error in f() : no\n"),
    "comments alone": ("# nothing", "", ""),
    "no code": ("", "", ""),
    "invalid bytes": ("cat(rawToChar(as.raw(c(0x41, 0xff, 0x42))))", "A\ufffdB", ""),
    "other encodings": (
        "x <- 'caf\\xe9'\nEncoding(x) <- 'latin1'\ncat(x)", "café", ""
    ),
    "help": (
        "x <- capture.output(print(help('nchar')))\ncat(gsub(' +', ' ', x[1]))",
        "nchar package:base R Documentation",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PRINTED)
def test_what_is_printed_goes_where_it_belongs(sandbox: Sandbox, case: str) -> None:
    code, stdout, stderr = PRINTED[case]
    cell = run(sandbox, code).check()
    assert (cell.results, cell.stdout, cell.stderr) == ((), stdout, stderr)


def test_every_visible_value_of_a_cell_is_shown_in_its_place(sandbox: Sandbox) -> None:
    seen: list[str] = []
    cell = sandbox.run_code(
        "1\ncat('between\\n')\n2\n3",
        on_stdout=lambda text: seen.append(str(text)),
        on_result=lambda result: seen.append(str(result.data["text/plain"])),
    )
    assert seen == ["[1] 1", "between\n", "[1] 2", "[1] 3"]
    assert (cell.text, [each.is_main for each in cell.results]) == ("[1] 3", [False, False, True])


# A cell that fails: the class of its error, its message, and the lines that tell how it came about.
ERRORS = {
    "at the top": ("stop('no')", "simpleError", "no", ["Error: no", "Traceback:", '1. stop("no")']),
    "in a function": (
        "g <- function(x) stop('no: ', x)\nf <- function(x) g(x + 1)\nf(1)", "simpleError", "no: 2",
        ["Error in g(x + 1) : no: 2", "Traceback:", "1. f(1)", "2. g(x + 1) at cell 1#2",
         '3. stop("no: ", x) at cell 1#1'],
    ),
    "of R's own": ("log(-1:1 + 'a')", "simpleError", "non-numeric argument to binary operator",
                   ["Error in -1:1 + \"a\" : non-numeric argument to binary operator"]),
    "an unknown name": ("nowhere", "simpleError", "object 'nowhere' not found", ["Error: object 'nowhere' not found"]),
    "an unknown function": ("nowhere()", "simpleError", 'could not find function "nowhere"',
                            ['Error in nowhere() : could not find function "nowhere"']),
    "a class of its own": (
        "stop(structure(class = c('broken', 'error', 'condition'), list(message = 'b', call = NULL)))", "broken", "b",
        ["Error: b"],
    ),
    "a failed assertion": ("stopifnot(1 == 2)", "simpleError", "1 == 2 is not TRUE", ["Error: 1 == 2 is not TRUE"]),
    "a warning made an error": ("options(warn = 2)\nas.integer('x')", "simpleError",
                                "(converted from warning) NAs introduced by coercion",
                                ["Error: (converted from warning) NAs introduced by coercion"]),
    "code that is none": ("x <- 1\nx y", "parseError", "cell 1:2:3: unexpected symbol\n1: x <- 1\n2: x y\n     ^",
                          ["Error: cell 1:2:3: unexpected symbol\n1: x <- 1\n2: x y\n     ^"]),
    "code that does not end": ("f(1,", "parseError", "cell 1:2:0: unexpected end of input\n1: f(1,\n   ^",
                               ["Error: cell 1:2:0: unexpected end of input\n1: f(1,\n   ^"]),
    "code with a NUL": ("1 + \0", "parseError", "a cell of R holds no NUL characters",
                        ["Error: a cell of R holds no NUL characters"]),
    "a missing package": ("library(notthere)", "packageNotFoundError", "there is no package called ‘notthere’",
                          ["Error in library(notthere) : there is no package called ‘notthere’"]),
    "a failed connection": ("readLines('/nowhere')", "simpleError", "cannot open the connection",
                            ["Error in file(con, \"r\") : cannot open the connection"]),
    "too much memory at once": ("numeric(1e12)", "simpleError", "cannot allocate vector of size 7450.6 Gb",
                                ["Error: cannot allocate vector of size 7450.6 Gb"]),
    "R's top level": ("invokeRestart('abort')", "toplevel", "the cell asked for R's top level, and ended there",
                      ["Error: the cell asked for R's top level, and ended there"]),
    "quitting": ("q()", "quit", "the cell asked R to quit with status 0; it ended, and the kernel lives on",
                 ["Error: the cell asked R to quit with status 0; it ended, and the kernel lives on"]),
    "quitting by its long name": ("base::quit('no', 3)", "quit",
                                  "the cell asked R to quit with status 3; it ended, and the kernel lives on",
                                  ["Error: the cell asked R to quit with status 3; it ended, and the kernel lives on"]),
    "an error in the midst of printing": ("print.bad <- function(x, ...) stop('in print')\nstructure(1, class = 'bad')",
                                          "simpleError", "in print", ["Error in print.bad(x) : in print"]),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_tells_its_call_and_how_it_came_about(sandbox: Sandbox, case: str) -> None:
    code, name, value, lines = ERRORS[case]
    cell = run(sandbox, code)
    assert cell.status is CellStatus.ERROR
    assert cell.error is not None
    assert (cell.error.name, cell.error.value) == (name, value)
    assert list(cell.error.traceback[: len(lines)]) == lines
    # The kernel's own calls are nobody's business, and it lives on.
    assert not [line for line in cell.error.traceback if "run_cell" in line or "tryCatch" in line]
    assert run(sandbox, "'on'").text == '[1] "on"'


def test_what_a_cell_did_before_its_error_stays(sandbox: Sandbox) -> None:
    cell = run(sandbox, "x <- 1\ncat('out\\n')\nwarning('w')\n7\nstop('no')\nx <- 2")
    assert (cell.status, cell.stdout) == (CellStatus.ERROR, "out\n")
    assert cell.stderr == "Warning message:\nw\n"
    assert [each.data["text/plain"] for each in cell.results] == ["[1] 7"]
    assert run(sandbox, "x").text == "[1] 1"


def test_endless_recursion_is_an_error(sandbox: Sandbox) -> None:
    cell = run(sandbox, "f <- function(n) f(n + 1)", "f(1)")
    assert cell.status is CellStatus.ERROR
    assert cell.error is not None
    assert "recursion" in cell.error.value or "C stack" in cell.error.value
    assert run(sandbox, "2").text == "[1] 2"


def test_a_deep_traceback_is_cut_in_its_midst(sandbox: Sandbox) -> None:
    cell = run(sandbox, "f <- function(n) if (n == 0) stop('deep') else f(n - 1)", "f(200)")
    assert cell.error is not None
    assert len(cell.error.traceback) < 60
    assert "more calls" in "".join(cell.error.traceback)


# What is run before, and what it leaves to the next cell.
KEPT = {
    "variables": (["x <- 1:10"], "sum(x)", "[1] 55"),
    "functions": (["sq <- function(x) x^2"], "sq(3)", "[1] 9"),
    "options": (["options(scipen = 100)"], "1e10", "[1] 10000000000"),
    "the seed": (["set.seed(1)"], "round(runif(1), 4)", "[1] 0.2655"),
    "the directory": (["dir.create('deep'); setwd('deep')"], "basename(getwd())", '[1] "deep"'),
    "attached packages": (["library(grid)"], "'package:grid' %in% search()", "[1] TRUE"),
    "environment variables": (["Sys.setenv(A_NAME = 'v')"], "system('echo $A_NAME', intern = TRUE)", '[1] "v"'),
    "connections": (["con <- textConnection(c('one', 'two')); readLines(con, 1)"], "readLines(con, 1)", '[1] "two"'),
    "files": (["writeLines('kept', 'f.txt')"], "readLines('f.txt')", '[1] "kept"'),
    "active bindings": (["makeActiveBinding('now', function() 4, globalenv())"], "now", "[1] 4"),
    "registered methods": (["registerS3method('format', 'odd', function(x, ...) 'odd!')"],
                           "format(structure(1, class = 'odd'))", '[1] "odd!"'),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_state_stays_from_cell_to_cell(sandbox: Sandbox, case: str) -> None:
    before, code, text = KEPT[case]
    assert run(sandbox, *before, code).check().text == text


# --- pictures -----------------------------------------------------------------------------------------------


# A cell that draws, and how many pictures come of it.
PICTURES = {
    "one": ("plot(1:3)", 1),
    "one with more on it": ("plot(1:3)\nlines(3:1)\ntitle('t')\nlegend('top', 'l')", 1),
    "several": ("plot(1)\nplot(2)\nhist(c(1, 2, 2))", 3),
    "several in one": ("par(mfrow = c(1, 2))\nplot(1)\nplot(2)", 1),
    "in a loop": ("for (i in 1:3) plot(i)", 3),
    "of a function": ("f <- function() { plot(1); invisible() }\nf()", 1),
    "curves": ("curve(sin, 0, 1)", 1),
    "bars": ("x <- barplot(1:3)", 1),
    "boxes": ("x <- boxplot(mpg ~ cyl, mtcars)", 1),
    "an image": ("image(volcano)", 1),
    "grid": ("library(grid)\ngrid.newpage()\ngrid.rect()", 1),
    "closed by the cell": ("plot(1)\nx <- dev.off()", 1),
    "only settings": ("x <- par(mar = c(1, 1, 1, 1))", 0),
    "a device of the cell's own": ("png('/tmp/own.png')\nplot(1)\nx <- dev.off()", 0),
    "drawn before an error": ("plot(1)\nstop('late')", 1),
}


@pytest.mark.parametrize("case", PICTURES)
def test_what_is_drawn_is_shown_as_png_and_svg(sandbox: Sandbox, case: str) -> None:
    code, count = PICTURES[case]
    cell = run(sandbox, code)
    assert len(cell.results) == count
    for result in cell.results:
        assert base64.b64decode(result.data["image/png"]).startswith(_PNG)
        if case != "closed by the cell":
            assert "<svg" in result.data["image/svg+xml"]
    # A picture ends with its cell.
    assert run(sandbox, "dev.list()").text == "NULL"


def test_a_picture_has_the_size_that_is_asked_for(sandbox: Sandbox) -> None:
    assert png_size(run(sandbox, "plot(1)")) == (800, 600)
    wanted = "options(repr.plot.width = 4, repr.plot.height = 3, repr.plot.res = 50)"
    assert png_size(run(sandbox, wanted, "plot(1)")) == (200, 150)


def png_size(cell: Cell) -> tuple[int, int]:
    picture = base64.b64decode(cell.png or "")
    return int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])


def test_text_is_drawn_in_pictures(sandbox: Sandbox) -> None:
    cell = run(sandbox, "plot.new()\ntext(0.5, 0.5, 'Größe', cex = 5)")
    assert (cell.svg or "").count("<use") >= 5


def test_a_picture_is_shown_before_what_the_next_page_prints(sandbox: Sandbox) -> None:
    seen: list[str] = []
    sandbox.run_code(
        "plot(1)\nplot(2)\ncat('after\\n')",
        on_stdout=lambda text: seen.append("text"),
        on_result=lambda result: seen.append("picture"),
    )
    assert seen == ["picture", "text", "picture"]


def test_what_is_said_while_a_value_is_printed_is_no_part_of_it(sandbox: Sandbox) -> None:
    # As rlang says it in an interactive session.
    code = """print.said <- function(x) withRestarts({
        signalCondition(structure(class = c("message", "condition"), list(message = "aside", call = NULL)))
        cat("aside\\n")
    }, muffleMessage = function() cat("value\\n"))
    structure(1, class = "said")"""
    cell = run(sandbox, code).check()
    assert (cell.text, cell.stdout, cell.stderr) == ("value", "", "aside\n")


def test_ggplot_draws_itself_as_a_value(sandbox: Sandbox) -> None:
    if run(sandbox, "(requireNamespace('ggplot2', quietly = TRUE))").text != "[1] TRUE":
        pytest.skip("ggplot2 is not installed; the Debian package is r-cran-ggplot2")
    # Attached aloud, it gives advice at random.
    code = "suppressPackageStartupMessages(library(ggplot2))\nggplot(mtcars, aes(wt, mpg)) + geom_point() + ggtitle('Title')"
    cell = run(sandbox, code).check()
    assert (len(cell.results), cell.stdout, cell.stderr) == (1, "", "")
    assert base64.b64decode(cell.png or "").startswith(_PNG)
    assert cell.svg is not None
    smooth = "ggplot(mtcars, aes(wt, mpg)) + geom_smooth(method = 'loess')"
    cell = run(sandbox, smooth).check()
    assert "text/plain" not in cell.results[0].data
    assert "using formula" in cell.stderr
    # In a function it has to be printed, as everywhere.
    assert run(sandbox, "f <- function() { qplot(1:3); 5 }\nsuppressWarnings(f())").text == "[1] 5"


# --- tables -------------------------------------------------------------------------------------------------


def test_a_data_frame_is_text_page_and_data(sandbox: Sandbox) -> None:
    cell = run(sandbox, "data.frame(n = c(1.5, NA), s = c('a<b', 'é'), stringsAsFactors = FALSE)")
    assert cell.text == "    n   s\n1 1.5 a<b\n2  NA   é"
    assert "<td>1.5</td><td>a&lt;b</td>" in (cell.html or "")
    table = cell.results[0].data[TABLE_FORM]
    assert table["data"] == [
        {"index": 1, "n": 1.5, "s": "a<b"},
        {"index": 2, "n": None, "s": "é"},
    ]
    assert cell.results[0].metadata[TABLE_FORM] == {"rows": 2, "columns": 2, "truncated": False}


def test_a_data_frame_can_be_had_as_one_of_pandas(sandbox: Sandbox) -> None:
    pandas = pytest.importorskip("pandas")
    frame: Any = run(
        sandbox,
        "data.frame(i = 1:2, d = c(1.5, NA), l = c(TRUE, FALSE), f = factor(c('x', 'y')),"
        " t = as.POSIXct(c(0, 60), origin = '1970-01-01', tz = 'UTC'), D = as.Date('2024-02-29') + 0:1,"
        " row.names = c('one', 'two'))",
    ).df
    assert list(frame.index) == ["one", "two"]
    assert list(frame["i"]) == [1, 2]
    assert list(frame["l"]) == [True, False]
    assert list(frame["f"]) == ["x", "y"]
    assert frame["t"]["two"] == pandas.Timestamp("1970-01-01T00:01:00Z")
    assert frame["D"]["one"] == pandas.Timestamp("2024-02-29")
    assert pandas.isna(frame["d"]["two"])


# A table, what its page holds, and the types of its columns.
TABLES = {
    "whole numbers": ("data.frame(a = 1:2)", "<th>&lt;int&gt;</th>", ["integer", "integer"]),
    "missing whole numbers": ("data.frame(a = c(1L, NA))", "<td>NA</td>", ["integer", "number"]),
    "truth values": ("data.frame(a = c(TRUE, FALSE))", "<td>TRUE</td>", ["integer", "boolean"]),
    "names of rows": ("head(mtcars[, 1:2], 1)", "<th>Mazda RX4</th>", ["string", "number", "number"]),
    "lists": ("d <- data.frame(a = 1:2); d$l <- list(1, 'x'); d", "<td>x</td>", ["integer", "integer", "string"]),
    "a column called index": ("data.frame(index = 'x')", "<td>x</td>", ["integer", "string"]),
    "two columns of one name": ("setNames(data.frame(1, 2), c('a', 'a'))", "<th>a</th><th>a</th>",
                                ["integer", "number", "number"]),
    "no rows": ("data.frame(a = character())", "0 × 1", ["integer", "string"]),
    "no columns": ("data.frame()", "0 × 0", ["integer"]),
    "durations": ("data.frame(d = as.difftime(5, units = 'mins'))", "5 mins", ["integer", "string"]),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_tables_of_all_kinds_have_a_page_and_types(sandbox: Sandbox, case: str) -> None:
    code, part, types = TABLES[case]
    cell = run(sandbox, code).check()
    assert part in (cell.html or "")
    fields = cell.results[0].data[TABLE_FORM]["schema"]["fields"]
    assert [field["type"] for field in fields] == types


def test_a_long_table_is_cut_and_says_so(sandbox: Sandbox) -> None:
    cell = run(sandbox, "data.frame(a = 1:50000, b = 'x')")
    assert "50000 × 2" in (cell.html or "")
    assert "<td>⋮</td>" in (cell.html or "")
    assert len(cell.results[0].data[TABLE_FORM]["data"]) == 10_000
    assert cell.results[0].metadata[TABLE_FORM]["truncated"] is True


def test_a_tibble_prints_itself_and_is_a_table(sandbox: Sandbox) -> None:
    if run(sandbox, "(requireNamespace('tibble', quietly = TRUE))").text != "[1] TRUE":
        pytest.skip("tibble is not installed; the Debian package is r-cran-tibble")
    cell = run(sandbox, "tibble::tibble(a = 1:2, b = c('x', 'y'))").check()
    assert "# A tibble: 2 × 2" in (cell.text or "")
    assert cell.results[0].data[TABLE_FORM]["data"][1] == {"index": 2, "a": 2, "b": "y"}


def test_a_matrix_has_a_page(sandbox: Sandbox) -> None:
    cell = run(sandbox, "matrix(1:4, 2, dimnames = list(c('r1', 'r2'), c('c1', 'c2')))")
    assert cell.text == "   c1 c2\nr1  1  3\nr2  2  4"
    assert "<tr><th>r2</th><td>2</td><td>4</td></tr>" in (cell.html or "")


# --- shown on purpose ---------------------------------------------------------------------------------------


# A call, and the form that it shows.
SHOWN = {
    "html": ("display_html('<b>x</b>')", "text/html", "<b>x</b>"),
    "markdown": ("display_markdown(c('# x', 'y'))", "text/markdown", "# x\ny"),
    "latex": ("display_latex('$x$')", "text/latex", "$x$"),
    "javascript": ("display_javascript('1')", "application/javascript", "1"),
    "svg": ("display_svg('<svg/>')", "image/svg+xml", "<svg/>"),
    "bytes": ("display_png(as.raw(c(1, 2, 255)))", "image/png", "AQL/"),
    "a file": ("writeBin(as.raw(1:4), '/tmp/f'); display_jpeg(file = '/tmp/f')", "image/jpeg", "AQIDBA=="),
    "json": ("display_json(list(a = 1, b = I(2), c = list()))", "application/json", {"a": 1, "b": [2], "c": []}),
    "a value": ("display(1:2)", "text/plain", "[1] 1 2"),
    "any form": ("publish_mimebundle(list('text/x-y' = 'z'))", "text/x-y", "z"),
}  # fmt: skip


@pytest.mark.parametrize("case", SHOWN)
def test_a_cell_can_show_what_it_likes(sandbox: Sandbox, case: str) -> None:
    code, kind, value = SHOWN[case]
    cell = run(sandbox, code).check()
    assert [each.data.get(kind) for each in cell.results] == [value]


def test_a_cell_can_clear_what_it_showed(sandbox: Sandbox) -> None:
    cell = run(sandbox, "cat('old\\n')\nclear_output(wait = FALSE)\ncat('new\\n')").check()
    assert cell.stdout == "new\n"


def test_a_widget_is_one_page_that_needs_no_other(sandbox: Sandbox) -> None:
    if run(sandbox, "(requireNamespace('htmlwidgets', quietly = TRUE))").text != "[1] TRUE":
        pytest.skip("htmlwidgets is not installed; the Debian package is r-cran-htmlwidgets")
    cell = run(sandbox, _WIDGET).check()
    assert cell.html is not None
    for part in (
        '{"x":42}',
        "HTMLWidgets.widget",
        "color: teal",
        "url(data:image/png;base64,AQID)",
    ):
        assert part in cell.html
    assert 'src="' not in cell.html
    assert "href=" not in cell.html


_WIDGET = """
folder <- tempfile(); dir.create(folder)
writeLines("HTMLWidgets.widget({name: 'small', type: 'output'}); // </script>", file.path(folder, "small.js"))
writeLines("p { color: teal; background: url('dot.png') }", file.path(folder, "small.css"))
writeBin(as.raw(1:3), file.path(folder, "dot.png"))
parts <- htmltools::htmlDependency("small", "1.0", folder, script = "small.js", stylesheet = "small.css")
htmlwidgets::createWidget("small", list(x = 42), package = "htmlwidgets", dependencies = list(parts))
"""


# --- input --------------------------------------------------------------------------------------------------

# A cell that asks, what it is told, and what comes of it.
INPUTS = {
    "a line": ("readline('name? ')", ["Ada"], '[1] "Ada"'),
    "an empty line": ("readline()", [""], '[1] ""'),
    "two lines": ("paste(readline('a '), readline('b '))", ["x", "y"], '[1] "x y"'),
    "from standard input": ("readLines(stdin(), 2)", ["one", "two"], '[1] "one" "two"'),
    "numbers": ("scan(quiet = TRUE, nmax = 2)", ["3 4"], "[1] 3 4"),
    "a choice": ("menu(c('x', 'y'))", ["2"], "[1] 2"),
    "unicode": ("nchar(readline())", ["é世𝄞"], "[1] 3"),
    "nobody is there": ("readline('name? ')", [], '[1] ""'),
    "nobody is there for lines": ("readLines(stdin())", [], "character(0)"),
}


@pytest.mark.parametrize("case", INPUTS)
def test_a_cell_asks_for_input(sandbox: Sandbox, case: str) -> None:
    code, lines, text = INPUTS[case]
    answers = iter(lines)
    cell = sandbox.run_code(code, on_input=lambda prompt, secret: next(answers, None), timeout=60)
    assert cell.check().text == text


def test_the_prompt_is_told(sandbox: Sandbox) -> None:
    asked: list[tuple[str, bool]] = []

    def answer(prompt: str, secret: bool) -> str:
        asked.append((prompt, secret))
        return "x"

    sandbox.run_code("x <- readline('größer? ')", on_input=answer).check()
    assert asked == [("größer? ", False)]


# --- the end of cells ---------------------------------------------------------------------------------------

# What goes on for ever, and heeds an interrupt with all that it has kept.
ENDLESS = {
    "a loop": "repeat {}",
    "a loop with work": "x <- 0; while (TRUE) x <- x + 1",
    "sleep": "Sys.sleep(1000)",
    "R's own C code": "while (TRUE) x <- sort(runif(1e5))",
    "a program": "system('sleep 1000')",
    "a program that is read": "system('sleep 1000', intern = TRUE)",
    "printing": "repeat cat('y')",
    "showing": "repeat display(1)",
    "recursion that is caught": "f <- function() tryCatch(f(), error = function(e) f()); f()",
    "errors that are caught": "repeat try(stop('again'), silent = TRUE)",
    "a pipe": "readLines(pipe('sleep 1000'))",
    "a fifo": "code <- system('mkfifo /tmp/own-fifo 2>/dev/null'); readLines('/tmp/own-fifo')",
    "a socket": "socketAccept(serverSocket(4000), timeout = 1000)",
    "a drawing": "repeat plot(1)",
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_timeout_ends_a_cell_and_keeps_the_kernel(
    sandbox: Sandbox, case: str, patient: None
) -> None:
    run(sandbox, "kept <- 5").check()
    cell = run(sandbox, ENDLESS[case], timeout=1.0)  # it never ends by itself
    assert cell.status is CellStatus.TIMED_OUT, cell.death
    assert run(sandbox, "kept").text == "[1] 5"


def test_an_interrupt_ends_a_cell(sandbox: Sandbox, patient: None) -> None:
    run(sandbox, "x <- 1").check()
    kernel = sandbox.kernels.list()[0].id
    code = "x <- 2; tryCatch({ cat('up\\n'); Sys.sleep(100) }, finally = cat('tidied\\n')); x <- 3"
    cell = interrupted(sandbox, code, kernel)
    assert (cell.status, cell.stdout) == (CellStatus.INTERRUPTED, "up\ntidied\n")
    assert cell.error is not None
    assert cell.error.name == "interrupt"
    assert run(sandbox, "x").text == "[1] 2"


def test_a_cell_that_waits_for_input_can_be_interrupted(sandbox: Sandbox) -> None:
    run(sandbox, "x <- 1").check()
    kernel = sandbox.kernels.list()[0].id
    entered = threading.Event()

    def never(prompt: str, secret: bool) -> str:
        sandbox.kernels.interrupt(kernel)
        entered.set()
        time.sleep(0.5)
        return "late"

    cell = sandbox.run_code("x <- readline()", on_input=never, timeout=60)
    assert entered.is_set()
    assert cell.status in (CellStatus.INTERRUPTED, CellStatus.OK)
    assert run(sandbox, "'on'").text == '[1] "on"'


def test_an_interrupt_between_cells_reaches_none(sandbox: Sandbox) -> None:
    run(sandbox, "x <- 1").check()
    run(sandbox, "system('kill -INT $PPID'); y <- 1")
    assert run(sandbox, "x").text == "[1] 1"


# What does not look up for a signal, or goes on after it; its kernel has to go.
DEAF = {
    "a long computation in C": "x <- solve(matrix(runif(9e6), 3000))",
    "programs one after the other": "repeat system('sleep 1')",
    "programs without end": "repeat system('sleep 1000', wait = FALSE)",
    "copies without end": "repeat p <- parallel:::mcfork()",
    "handlers": "repeat tryCatch(repeat {}, interrupt = function(i) NULL)",
}


@pytest.mark.parametrize("case", DEAF)
def test_a_cell_that_does_not_heed_its_timeout_loses_its_kernel(
    sandbox: Sandbox, case: str
) -> None:
    begun = time.monotonic()
    cell = run(sandbox, DEAF[case], timeout=0.5)
    assert cell.status in (CellStatus.DIED, CellStatus.TIMED_OUT)
    assert time.monotonic() - begun < 60
    assert run(sandbox, "1").text == "[1] 1"


# How a kernel ends, and the word that tells.
DEATHS = {
    "a signal": ("tools::pskill(Sys.getpid(), 9)", "SIGKILL"),
    "a crash": ("tools::pskill(Sys.getpid(), 11)", "SIGSEGV"),
}


@pytest.mark.parametrize("case", DEATHS)
def test_a_death_is_told_and_the_next_cell_has_a_new_kernel(sandbox: Sandbox, case: str) -> None:
    code, word = DEATHS[case]
    cell = run(sandbox, "x <- 1; writeLines('f', 'kept.txt')", code)
    assert cell.status is CellStatus.DIED
    assert word in cell.death
    assert run(sandbox, "exists('x')").text == "[1] FALSE"
    assert run(sandbox, "readLines('kept.txt')").text == '[1] "f"'


@pytest.mark.cgroups
def test_a_kernel_that_takes_too_much_memory_says_so(engine: str) -> None:
    with Sandbox(template="r", engine=engine, limits={"memory": "256M"}) as small:
        cell = run(small, "x <- list(); repeat x[[length(x) + 1]] <- runif(1e6)", timeout=60)
        assert cell.status is CellStatus.DIED
        assert "memory" in cell.death
        assert run(small, "1").text == "[1] 1"


def test_a_kernel_can_be_restarted(sandbox: Sandbox) -> None:
    run(sandbox, "x <- 1").check()
    sandbox.kernels.restart(sandbox.kernels.list()[0].id)
    assert run(sandbox, "exists('x')").text == "[1] FALSE"


# --- much -----------------------------------------------------------------------------------------------------


def test_ten_megabytes_of_output_do_no_harm(sandbox: Sandbox) -> None:
    cell = run(sandbox, "cat(strrep('0123456789', 1e6)); 'done'").check()
    assert cell.text == '[1] "done"'
    assert len(cell.stdout) == 1 << 20
    assert cell.truncated


def test_a_very_long_value_is_cut(sandbox: Sandbox) -> None:
    cell = run(sandbox, "strrep('x', 2e7)").check()
    assert cell.text is not None
    assert "(cut:" in cell.text
    assert len(cell.text) < 8 << 20


def test_many_lines_are_printed_in_order(sandbox: Sandbox) -> None:
    cell = run(sandbox, "for (i in 1:20000) cat(i, '\\n', sep = '')").check()
    assert cell.stdout == "".join(f"{i}\n" for i in range(1, 20001))


def test_a_large_picture_leaves_its_svg_out(sandbox: Sandbox) -> None:
    cell = run(sandbox, "plot(runif(1e5), runif(1e5))").check()
    assert cell.png is not None
    assert cell.svg is None


# --- questions ------------------------------------------------------------------------------------------------


def test_cells_are_counted(sandbox: Sandbox) -> None:
    assert [run(sandbox, "1").execution_count for _ in range(3)] == [1, 2, 3]


def test_copies_of_the_kernel_have_no_part_in_what_is_said(sandbox: Sandbox) -> None:
    code = "x <- parallel::mclapply(1:2, function(i) { print(i); try(display(i), silent = TRUE); i * 2 }, mc.cores = 2)"
    cell = run(sandbox, code, "unlist(x)").check()
    assert cell.text == "[1] 2 4"


def test_a_forked_copy_that_comes_to_the_end_of_its_cell_ends(sandbox: Sandbox) -> None:
    run(sandbox, "p <- parallel:::mcfork(); if (inherits(p, 'masterProcess')) 1 else 2").check()
    assert run(sandbox, "3").text == "[1] 3"
