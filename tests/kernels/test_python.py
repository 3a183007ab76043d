"""Cells of Python: what they keep, show and print, and how they end, in a real kernel of a sandbox."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from atoll import Sandbox
from atoll.model.kernel import Cell, CellStatus
from tests.kernels.interrupts import interrupted

_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def sandbox(engine: str) -> Iterator[Sandbox]:
    """A sandbox with one Python, which these tests leave as useful as they found it."""
    with Sandbox(engine=engine) as sandbox:
        yield sandbox


@pytest.fixture
def fresh(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The same, for tests that spoil its kernel."""
    yield sandbox
    for kernel in sandbox.kernels.list():
        sandbox.kernels.close(kernel.id)


def run(sandbox: Sandbox, *cells: str, timeout: float = 30.0) -> Cell:
    """Run cells one after the other; return what came of the last."""
    for code in cells[:-1]:
        sandbox.run_code(code, timeout=timeout).check()
    return sandbox.run_code(cells[-1], timeout=timeout)


# What is run, one cell after the other, and the text of the last one's value; None: there is none to show.
VALUES: dict[str, tuple[list[str], str | None]] = {
    "a number": (["1 + 1"], "2"),
    "a text": (["'a\"b'"], "'a\"b'"),
    "nothing": (["None"], None),
    "no code": ([""], None),
    "a comment alone": (["# nothing"], None),
    "an assignment": (["seven = 7"], None),
    "an assignment in an expression": (["(n := 7)"], "7"),
    "the last of several": (["1; 2"], "2"),
    "nothing before a semicolon": (["5;"], None),
    "nothing before a semicolon and a comment": (["'before'", "x = 1\n(x);  # quiet", "_"], "'before'"),
    "a semicolon in a text": (["';'"], "';'"),
    "over several lines": (["(1,\n 2)"], "(1, 2)"),
    "after a statement": (["x = 20\nx + 1"], "21"),
    "a loop": (["for each in [1]:\n    each"], None),
    "a condition": (["if True:\n    5"], None),
    "a function": (["def silent(): ...\n"], None),
    "line ends of another system": (["one = 1\r\ntwo = 2\r\none + two"], "3"),
    "a list": (["[1, 'a', None]"], "[1, 'a', None]"),
    "a long list": (["list(range(2000))[-1:]"], "[1999]"),
    "a list of many lines": (["['x' * 60, 'y' * 60]"], f"['{'x' * 60}',\n '{'y' * 60}']"),
    "a dictionary in its order": (["{'b': 1, 'a': [2]}"], "{'b': 1, 'a': [2]}"),
    "a large integer": (["2 ** 70"], "1180591620717411303424"),
    "a fraction": (["from fractions import Fraction\nFraction(1, 3)"], "Fraction(1, 3)"),
    "bytes": (["b'\\xff'"], "b'\\xff'"),
    "text outside of ASCII": (["'ü€𝄞'"], "'ü€𝄞'"),
    "names of other scripts": (["größe = 3", "größe"], "3"),
    "half of a pair of surrogates": (["'\\ud800'"], "'\\ud800'"),
    "the number of characters": (["len('é世𝄞')"], "3"),
    "a class's own way": (["class Thing:\n    def __repr__(self): return '<mine>'\nThing()"], "<mine>"),
    "a class's own way in several lines": (["class Lines:\n    def __repr__(self): return 'a\\nb'\nLines()"], "a\nb"),
    "a dataclass": (["from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nP(3)"], "P(x=3)"),
    "a named tuple": (["from collections import namedtuple\nnamedtuple('Q', 'a b')(1, 2)"], "Q(a=1, b=2)"),
    "an enumeration": (["import enum\nclass C(enum.Enum):\n    RED = 1\nC.RED"], "<C.RED: 1>"),
    "a match": (["match (1, 2):\n    case (a, b): c = a + b", "c"], "3"),
    "a generator": (["[n * n for n in (i for i in range(4))]"], "[0, 1, 4, 9]"),
    "await": (["import asyncio", "await asyncio.sleep(0, 7)"], "7"),
    "await in an expression": (["import asyncio", "[await asyncio.sleep(0, n) for n in (1, 2)]"], "[1, 2]"),
    "async for": (["async def count():\n    for n in range(3):\n        yield n\n", "[n async for n in count()]"],
                  "[0, 1, 2]"),
    "async with": (["import contextlib\n@contextlib.asynccontextmanager\nasync def held():\n    yield 4\n",
                    "async with held() as found:\n    pass\nfound"], "4"),
    "a coroutine that nobody awaited": (["async def late():\n    return 8\n", "late()"], "8"),
    "a task of an earlier cell": (["import asyncio\nasync def soon():\n    await asyncio.sleep(0.01); return 9\ntask = asyncio.ensure_future(soon()); await asyncio.sleep(0)",
                                   "await task"], "9"),
    "many at once": (["import asyncio", "await asyncio.gather(*(asyncio.sleep(0.01, n) for n in range(3)))"], "[0, 1, 2]"),
    "an event loop of its own": (["import asyncio, threading\nmade = []\nthread = threading.Thread(target=lambda: made.append(asyncio.run(asyncio.sleep(0, 6)))); thread.start(); thread.join(); made"],
                                 "[6]"),
    "the last value": (["6 * 7", "_ + 1"], "43"),
    "the last value, past a cell without one": (["'kept'", "quiet = 1", "_"], "'kept'"),
    "cells that were": (["'first'", "In[-2]"], "\"'first'\""),
    "the name of the module": (["__name__"], "'__main__'"),
    "the directory": (["import os; os.getcwd()"], "'/workspace'"),
    "the home": (["import os; os.path.expanduser('~')"], "'/home/sandbox'"),
    "standard input is at its end": (["import sys; sys.stdin.read()"], "''"),
    "the encoding": (["import sys; sys.stdout.encoding, sys.getfilesystemencoding()"], "('utf-8', 'utf-8')"),
    "annotations": (["def f(a: int) -> str: ...\nf.__annotations__"], "{'a': int, 'return': str}"),
    "source of a function": (["import inspect\ndef g(a):\n    return a + 1\n", "inspect.getsource(g)"],
                             "'def g(a):\\n    return a + 1\\n'"),
    "a pickle of what a cell defined": (["import pickle\nclass Box:\n    n = 5\n", "pickle.loads(pickle.dumps(Box)).n"], "5"),
    "programs": (["import subprocess\nsubprocess.run(['echo', 'hi'], capture_output=True, text=True).stdout"], "'hi\\n'"),
    "threads": (["from concurrent.futures import ThreadPoolExecutor\nlist(ThreadPoolExecutor(4).map(abs, [-1, 2]))"], "[1, 2]"),
    "other processes": (["import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool: made = pool.map(abs, [-1, -2])",
                         "made"], "[1, 2]"),
    "a server": (["import http.server, threading, urllib.request\nclass Quiet(http.server.SimpleHTTPRequestHandler):\n    def log_message(self, *_): pass\nserver = http.server.HTTPServer(('127.0.0.1', 0), Quiet)\nthreading.Thread(target=server.serve_forever, daemon=True).start()",
                  "urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}').status"], "200"),
    "a database": (["import sqlite3\nsqlite3.connect(':memory:').execute('select 6 * 7').fetchone()[0]"], "42"),
    "a file": (["with open('made', 'w') as made: made.write('ü')\nopen('made').read()"], "'ü'"),
    "a cell of many lines": (["lines = 0\n" + "lines += 1\n" * 20_000 + "lines"], "20000"),
}  # fmt: skip


@pytest.mark.parametrize("what", VALUES)
def test_a_cell_shows(what: str, sandbox: Sandbox) -> None:
    cells, text = VALUES[what]
    cell = run(sandbox, *cells)
    assert cell.status is CellStatus.OK, cell.error
    assert cell.text == text


# What is run, one cell after the other, and the text of the last one's value.
STATE: dict[str, tuple[list[str], str]] = {
    "variables": (["x = 1", "x"], "1"),
    "variables given anew": (["x = 1", "x = 'two'", "x"], "'two'"),
    "functions defined anew": (["def f(): return 1", "def f(): return 2", "f()"], "2"),
    "functions see later values": (["n = 1\ndef see(): return n", "n = 5", "see()"], "5"),
    "functions see functions defined anew": (["def a(): return b()\ndef b(): return 1", "def b(): return 2", "a()"], "2"),
    "classes defined anew": (["class A: n = 1", "class A: n = 2", "A().n"], "2"),
    "objects of a class that was defined anew": (["class A: n = 1\nold = A()", "class A: n = 2", "old.n"], "1"),
    "a function in place of a class": (["class thing: ...", "def thing(): return 3", "thing()"], "3"),
    "imports": (["import math as m", "m.floor(2.5)"], "2"),
    "names that were deleted": (["gone = 1", "del gone", "'gone' in globals()"], "False"),
    "the directory": (["import os; os.makedirs('deep', exist_ok=True); os.chdir('deep')", "back = os.getcwd(); os.chdir('..'); back"], "'/workspace/deep'"),
    "environment variables": (["import os; os.environ['KEPT'] = 'v'", "import subprocess; subprocess.getoutput('echo $KEPT')"], "'v'"),
    "open files": (["kept = open('lines', 'w+'); kept.write('a\\nb\\n'); _ = kept.seek(0); first = kept.readline()", "kept.readline()"], "'b\\n'"),
    "iterators": (["it = iter('ab'); first = next(it)", "next(it)"], "'b'"),
    "random seeds": (["import random; random.seed(1)", "first = random.random(); random.seed(1); random.random() == first"], "True"),
    "threads that go on": (["import threading, time\nticks = []\ndef tick():\n    while len(ticks) < 3: ticks.append(1); time.sleep(0.001)\nthread = threading.Thread(target=tick); thread.start()",
                            "thread.join(); len(ticks)"], "3"),
    "modules of the workspace": (["open('own.py', 'w').write('n = 4')\nimport sys; sys.path.insert(0, '')", "import own; own.n"], "4"),
    "what a failed cell did first": (["x = 'before'\ntry: raise ValueError\nexcept ValueError: x = 'after'", "x"], "'after'"),
    "recursion limits": (["import sys; sys.setrecursionlimit(5000)", "sys.getrecursionlimit() >= 4000"], "True"),
}  # fmt: skip


@pytest.mark.parametrize("what", STATE)
def test_a_session_keeps(what: str, sandbox: Sandbox) -> None:
    cells, text = STATE[what]
    cell = run(sandbox, *cells)
    assert cell.status is CellStatus.OK, cell.error
    assert cell.text == text


# Code that fails, and what is told of it: name, text, and a part of the traceback.
ERRORS: dict[str, tuple[str, str, str, str]] = {
    "raised": ("raise ValueError('bad')", "ValueError", "bad", "ValueError: bad"),
    "without words": ("raise ValueError", "ValueError", "", "ValueError"),
    "in a function": ("def f(a):\n    return 1 / a\nf(0)", "ZeroDivisionError", "division by zero", "return 1 / a"),
    "of a class of its own": ("class Mine(Exception): ...\nraise Mine('own')", "Mine", "own", "Mine: own"),
    "with a cause": ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e", "KeyError", "'k'",
                     "The above exception was the direct cause"),
    "while another was handled": ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    nowhere", "NameError", "name 'nowhere' is not defined",
                                  "During handling of the above exception"),
    "several": ("raise ExceptionGroup('all', [ValueError('one')])", "ExceptionGroup", "all (1 sub-exception)", "one"),
    "an unknown name": ("nowhere", "NameError", "name 'nowhere' is not defined", "NameError"),
    "an unknown module": ("import no_such_module", "ModuleNotFoundError", "No module named 'no_such_module'", "import no_such_module"),
    "an unknown file": ("open('/nowhere')", "FileNotFoundError", "[Errno 2] No such file or directory: '/nowhere'", "open('/nowhere')"),
    "a failed assertion": ("assert 1 == 2, 'not so'", "AssertionError", "not so", "assert 1 == 2"),
    "syntax": ("x = 1\nx = = 2", "SyntaxError", "invalid syntax", "x = = 2"),
    "an end that is missing": ("f(1,", "SyntaxError", "incomplete input", "f(1,"),
    "indentation": ("if True:\nx = 1", "IndentationError", "expected an indented block after 'if' statement on line 1", "x = 1"),
    "a return": ("return 5", "SyntaxError", "'return' outside function", "return 5"),
    "after await": ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    raise OSError('late')\nawait f()", "OSError", "late",
                    "raise OSError('late')"),
    "recursion without end": ("def f(): f()\nf()", "RecursionError", "maximum recursion depth exceeded", "f()"),
    "leaving": ("raise SystemExit(3)", "SystemExit", "3", "SystemExit"),
    "an error that cannot be told": ("class Dumb(Exception):\n    def __str__(self): raise ValueError\nraise Dumb", "Dumb", "", "Dumb"),
    "of another encoding": ("raise ValueError('ü€𝄞\\ud800')", "ValueError", "ü€𝄞", "ü€𝄞"),
    "a warning made an error": ("import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('error')\n    warnings.warn('careful')",
                                "UserWarning", "careful", "careful"),
}  # fmt: skip


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_tells(what: str, sandbox: Sandbox) -> None:
    code, name, value, part = ERRORS[what]
    cell = sandbox.run_code(code)
    assert cell.status is CellStatus.ERROR
    assert cell.error is not None
    assert cell.error.name == name
    assert value in cell.error.value
    text = "\n".join(cell.error.traceback)
    assert part in text
    assert "\x1b" not in text
    assert "atoll_guest" not in text
    assert len(text) < 20_000
    assert sandbox.run_code("'alive'").text == "'alive'"


# What is run, and what it prints to its output and to its error output.
PRINTED: dict[str, tuple[str, str, str]] = {
    "print": ("print('a', 1, sep='-')", "a-1\n", ""),
    "no end of line": ("print('x', end='')", "x", ""),
    "to standard error": ("import sys; print('e', file=sys.stderr)", "", "e\n"),
    "both": ("import sys\nprint('out')\nsys.stderr.write('err'); None", "out\n", "err"),
    "text outside of ASCII": ("print('ünïcödé 日本 🐍')", "ünïcödé 日本 🐍\n", ""),
    "half of a pair of surrogates": ("print('\\ud800')", "\\ud800\n", ""),
    "bytes that are no text": ("import os; os.write(1, b'a\\xff\\xfeb'); None", "a\ufffd\ufffdb", ""),
    "bytes of standard error": ("import os; os.write(2, b'\\xe2\\x82'); None", "", "\ufffd"),
    "a character in two parts": ("import os, time\n_ = os.write(1, b'\\xe2\\x82'); time.sleep(0.05); _ = os.write(1, b'\\xac')", "€", ""),
    "NUL": ("print('a\\0b')", "a\0b\n", ""),
    "what looks like a mark": ("print('\\x1e\\x1eatoll')", "\x1e\x1eatoll\n", ""),
    "colours": ("print('\\x1b[31mred\\x1b[0m')", "\x1b[31mred\x1b[0m\n", ""),
    "carriage returns": ("print('a\\rb')", "a\rb\n", ""),
    "a program's output": ("import os; _ = os.system('echo sub; echo oops >&2')", "sub\n", "oops\n"),
    "a program in its place": ("import subprocess\nprint('a', flush=True); _ = subprocess.run(['echo', 'b']); print('c')", "a\nb\nc\n", ""),
    "a thread's": ("import threading\nt = threading.Thread(target=print, args=('t',)); t.start(); t.join()", "t\n", ""),
    "a copy's": ("import os\npid = os.fork()\nif not pid: os.write(1, b'copy\\n'); os._exit(0)\n_ = os.waitpid(pid, 0)", "copy\n", ""),
    "a log": ("import logging; logging.warning('logged')", "", "WARNING:root:logged\n"),
    "what was sent elsewhere": ("import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as said: print('in')\nprint(said.getvalue(), end='')", "in\n", ""),
    # IPython gives such a command a terminal.
    "a shell's command": ("!echo shell", "shell\r\n", ""),
    "a shell's command with a value": ("word = 'given'\n!echo $word", "given\r\n", ""),
    "a cell of a shell": ("%%bash\necho one\necho two >&2", "one\n", "two\n"),
    "captured output": ("%%capture said\nprint('caught')", "", ""),
    "after an error": ("try: 1 / 0\nexcept ZeroDivisionError: print('on')", "on\n", ""),
}  # fmt: skip


@pytest.mark.parametrize("what", PRINTED)
def test_a_cell_prints(what: str, sandbox: Sandbox) -> None:
    code, stdout, stderr = PRINTED[what]
    cell = sandbox.run_code(code)
    assert cell.status is CellStatus.OK, cell.error
    assert (cell.stdout, cell.stderr, cell.results) == (stdout, stderr, ())


def test_a_value_that_cannot_be_shown_says_why(sandbox: Sandbox) -> None:
    code = "class Bad:\n    def __repr__(self): raise TypeError('in its form')\nBad()"
    cell = sandbox.run_code(code).check()
    assert cell.results == ()
    assert "TypeError: in its form" in cell.stderr


def test_what_is_printed_comes_while_the_cell_runs(sandbox: Sandbox) -> None:
    begun = threading.Event()
    code = "import os, time\nprint('now')\nwhile not os.path.exists('go'): time.sleep(0.01)"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            sandbox.run_code, code, timeout=60, on_stdout=lambda _text: begun.set()
        )
        try:
            assert begun.wait(60)
            assert not running.done()
        finally:
            sandbox.files.write("go", "")
        assert running.result().stdout == "now\n"
    sandbox.files.remove("go")


# --- what is shown ---------------------------------------------------------------------------------------------------

# What is displayed, and what becomes of it.
SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "html": ("HTML('<b>x</b>')", {"text/html": "<b>x</b>"}),
    "markdown": ("Markdown('*x*')", {"text/markdown": "*x*"}),
    "latex": ("Latex('$x$')", {"text/latex": "$x$"}),
    "mathematics": ("Math('x')", {"text/latex": "$\\displaystyle x$"}),
    "svg": ("SVG('<svg></svg>')", {"image/svg+xml": "<svg/>"}),
    "json": ("JSON({'a': [1, None]})", {"application/json": {"a": [1, None]}}),
    "javascript": ("Javascript('f()')", {"application/javascript": "f()"}),
    "an image": (f"import base64\nImage(base64.b64decode('{_PNG}'))", {"image/png": _PNG}),
    "a JPEG": ("Image(bytes.fromhex('ffd8ffe000'), format='jpeg')", {"image/jpeg": "/9j/4AA="}),
    "html by a method": ("class T:\n    def _repr_html_(self): return '<i>'\nT()", {"text/html": "<i>"}),
    "latex by a method": ("class T:\n    def _repr_latex_(self): return '$y$'\nT()", {"text/latex": "$y$"}),
    "a picture by a method": ("class T:\n    def _repr_png_(self): return b'\\x89PNG'\nT()", {"image/png": base64.b64encode(b"\x89PNG").decode()}),
    "pdf by a method": ("class T:\n    def _repr_pdf_(self): return b'%PDF-'\nT()", {"application/pdf": base64.b64encode(b"%PDF-").decode()}),
    "svg by a method": ("class T:\n    def _repr_svg_(self): return '<svg/>'\nT()", {"image/svg+xml": "<svg/>"}),
    "several forms by a method": ("class T:\n    def _repr_mimebundle_(self, **_): return {'text/html': '<u>', 'text/x-own': 'o'}\nT()",
                                  {"text/html": "<u>", "text/x-own": "o"}),
    "a value on purpose": ("display([1, 2])", {"text/plain": "[1, 2]"}),
    "forms on purpose": ("display({'text/html': '<s>', 'text/plain': 's'}, raw=True)", {"text/html": "<s>", "text/plain": "s"}),
    "a method that fails": ("class T:\n    def _repr_html_(self): raise ValueError\n    def __repr__(self): return 'plain'\nT()", {"text/plain": "plain"}),
    "sound": ("Audio(b'RIFF', embed=True, rate=8000)", {}),
    "a film": ("open('film.mp4', 'wb').write(b'film')\nVideo('film.mp4', embed=True)", {}),
    "not a number in JSON": ("display({'application/json': float('nan'), 'text/plain': 'x'}, raw=True)", {"application/json": None}),
}  # fmt: skip


@pytest.mark.parametrize("what", SHOWN)
def test_a_cell_displays(what: str, sandbox: Sandbox) -> None:
    code, forms = SHOWN[what]
    cell = sandbox.run_code(f"from IPython.display import *\n{code}")
    assert cell.status is CellStatus.OK, cell.error
    (shown,) = cell.results
    assert {kind: shown.data.get(kind) for kind in forms} == forms
    if not forms:
        assert "base64," in shown.data["text/html"]


def test_displays_are_where_they_belong_and_can_be_replaced_and_cleared(sandbox: Sandbox) -> None:
    events = list(sandbox.stream_code("print('a')\ndisplay(1)\nprint('c')\n'd'"))
    kinds = [type(event).__name__ for event in events[:-1]]
    assert kinds == ["Output", "Bundle", "Output", "Bundle"]
    cell = sandbox.run_code("shown = display('old', display_id=True)\nshown.update('new')")
    assert [each.data["text/plain"] for each in cell.results] == ["'new'"]
    code = "from IPython.display import clear_output\nprint('gone'); display(1); clear_output(); print('here')"
    cell = sandbox.run_code(code)
    assert (cell.stdout, cell.results) == ("here\n", ())


# Magics, and the text of what follows from them.
MAGICS: dict[str, tuple[list[str], str]] = {
    "a shell's output as a list": (["found = !printf 'a\\nb\\n'", "found"], "['a', 'b']"),
    "the directory": (["%cd -q /tmp", "import os; at = os.getcwd(); os.chdir('/workspace'); at"], "'/tmp'"),
    "variables of the environment": (["%env GIVEN=yes", "import os; os.environ['GIVEN']"], "'yes'"),
    "a program of the workspace": (["open('script.py', 'w').write('made = 5')", "%run script.py", "made"], "5"),
    "a file from a cell": (["%%writefile noted.txt\nline", "open('noted.txt').read()"], "'line\\n'"),
    "captured output": (["%%capture said\nprint('caught')", "said.stdout"], "'caught\\n'"),
    "precision": (["%precision 2", "found = 2 / 3", "%precision", "round(found, 2)"], "0.67"),
    "who is there": (["only_here = 1", "'only_here' in get_ipython().user_ns"], "True"),
}  # fmt: skip


@pytest.mark.parametrize("what", MAGICS)
def test_a_cell_knows_magic(what: str, sandbox: Sandbox) -> None:
    cells, text = MAGICS[what]
    for code in cells[:-1]:
        sandbox.run_code(code).check()
    assert sandbox.run_code(cells[-1]).text == text


def test_time_is_told(sandbox: Sandbox) -> None:
    assert "Wall time" in sandbox.run_code("%time 1").stdout
    assert "loop" in sandbox.run_code("%timeit -n1 -r1 pass").stdout


# --- much ------------------------------------------------------------------------------------------------------------


def test_ten_megabytes_of_output_end_well(sandbox: Sandbox) -> None:
    cell = sandbox.run_code("for _ in range(1000): print('x' * 9999)\n'done'")
    assert cell.text == "'done'"
    assert cell.truncated
    assert set(cell.stdout) == {"x", "\n"}
    received: list[str] = []
    code = "import sys; sys.stdout.write('y' * 10_000_000); None"
    sandbox.run_code(code, on_stdout=received.append)
    assert sum(map(len, received)) == 10_000_000


def test_a_value_of_ten_megabytes_is_cut_with_a_note(sandbox: Sandbox) -> None:
    cell = sandbox.run_code("'z' * 10_000_000")
    assert cell.text is not None
    assert "10000002 characters" in cell.text
    assert len(cell.text) < 9 << 20


def test_many_lines_are_printed_in_order(sandbox: Sandbox) -> None:
    cell = sandbox.run_code("for i in range(20_000): print(i)")
    assert cell.stdout == "".join(f"{i}\n" for i in range(20_000))


def test_what_prints_without_end_in_the_background_holds_up_no_cell(fresh: Sandbox) -> None:
    run(fresh, "import subprocess; noisy = subprocess.Popen(['yes'])").check()
    for _ in range(5):
        assert fresh.run_code("1 + 1", timeout=60).text == "2"
    assert run(fresh, "noisy.kill(); noisy.wait()").text == "-9"


def test_cells_are_counted(fresh: Sandbox) -> None:
    fresh.run_code("0")
    first = fresh.run_code("1").execution_count
    assert [fresh.run_code("1").execution_count for _ in range(2)] == [first + 1, first + 2]


# --- input, completion -----------------------------------------------------------------------------------------------

# A cell that asks, what it is told, and what comes of it.
INPUTS = {
    "a line": ("input('name? ')", ["Ada"], "'Ada'"),
    "an empty line": ("input()", [""], "''"),
    "two lines": ("[input('a'), input('b')]", ["x", "y"], "['x', 'y']"),
    "a number": ("int(input()) + 1", ["41"], "42"),
    "text outside of ASCII": ("len(input())", ["é世𝄞"], "3"),
    "a password": ("import getpass; getpass.getpass()", ["secret"], "'secret'"),
    "in a function": ("def ask(): return input('?')\nask()", ["here"], "'here'"),
    "after what was printed": ("print('before'); input()", ["x"], "'x'"),
}


@pytest.mark.parametrize("what", INPUTS)
def test_a_cell_asks_for_input(what: str, sandbox: Sandbox) -> None:
    code, lines, text = INPUTS[what]
    answers = iter(lines)
    cell = sandbox.run_code(code, on_input=lambda prompt, secret: next(answers, None), timeout=60)
    assert cell.check().text == text


def test_the_prompt_is_told_and_whether_it_is_secret(sandbox: Sandbox) -> None:
    asked: list[tuple[str, bool]] = []

    def answer(prompt: str, secret: bool) -> str:
        asked.append((prompt, secret))
        return "x"

    code = "import getpass\n_ = input('größer? '), getpass.getpass('key: ')"
    sandbox.run_code(code, on_input=answer).check()
    assert asked == [("größer? ", False), ("key: ", True)]


@pytest.mark.parametrize("code", ["input('?')", "import getpass; getpass.getpass()"])
def test_a_cell_that_asks_nobody_is_told_so(code: str, sandbox: Sandbox) -> None:
    cell = sandbox.run_code(code)
    assert cell.error is not None
    assert cell.error.name == "EOFError"
    assert "nobody is there" in "\n".join(cell.error.traceback)


def test_names_are_completed_and_explained(sandbox: Sandbox) -> None:
    code = 'some_long_name = {"key": 1}\ndef add(a, b):\n    """Adds."""\n    return a + b'
    sandbox.run_code(code).check()
    assert "some_long_name" in sandbox.complete("some_lo").matches
    assert "import" in sandbox.complete("imp").matches
    about = sandbox.inspect("add")
    assert about is not None
    assert "Adds." in about.data["text/plain"]
    assert sandbox.inspect("nowhere_at_all") is None


# --- interrupts ------------------------------------------------------------------------------------------------------

# What does not end by itself; a cell of it ends in time, and its kernel lives on. Imports come first: Python itself loses an
# interrupt that comes while the lock of a module goes away.
_READY = "import asyncio, os, re, socket, subprocess, threading, time"
ENDLESS = {
    "sleep": "time.sleep(1000)",
    "a loop": "while True: pass",
    "a loop that catches errors": "while True:\n    try: 1 / 0\n    except Exception: pass",
    "a loop over an iterator": "for n in iter(int, 1): pass",
    "a read": "os.read(os.pipe()[0], 1)",
    "a socket": "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); s.accept()",
    "a lock": "threading.Event().wait()",
    "a thread": "t = threading.Thread(target=time.sleep, args=(30,), daemon=True); t.start(); t.join()",
    "a program": "subprocess.run(['sleep', '1000'])",
    "a busy program": "subprocess.run('while :; do :; done', shell=True)",
    "many programs": "while True: subprocess.run(['true'])",
    "a shell's command": "!sleep 1000",
    "await": "await asyncio.sleep(1000)",
    "an endless await": "while True: await asyncio.sleep(0)",
    "a coroutine as a value": "asyncio.sleep(1000)",
    "a pattern": "re.match(r'(a+)+$', 'a' * 40 + '!')",
    "output": "while True: print('x' * 100)",
    "displays": "while True: display(1)",
    "a value that never shows itself": "class Slow:\n    def __repr__(self):\n        while True: pass\nSlow()",
    "files": "while True:\n    with open('churned', 'w') as f: f.write('x')",
}  # fmt: skip


@pytest.mark.parametrize("what", ENDLESS)
def test_a_cell_ends_at_its_limit_and_leaves_state(
    what: str, sandbox: Sandbox, patient: None
) -> None:
    run(sandbox, f"kept = 42\n{_READY}").check()
    cell = sandbox.run_code(ENDLESS[what], timeout=0.3)  # it never ends by itself
    assert cell.status is CellStatus.TIMED_OUT, cell
    after = sandbox.run_code("import sys; print('heard'); print('too', file=sys.stderr); kept")
    assert (after.text, after.stdout, after.stderr) == ("42", "heard\n", "too\n")


# What does not look up for a signal, or goes on after it; its kernel has to go.
DEAF = {
    "a loop in C": "sum(range(10 ** 15))",
    "no handler": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "a handler of its own": "import signal\nsignal.signal(signal.SIGINT, lambda *_: None)\nwhile True: pass",
    "copies without end": "import os\nwhile True:\n    try: os.fork()\n    except BaseException: pass",
    "programs without end": "import subprocess\nwhile True:\n    try: subprocess.Popen(['sleep', '1000'])\n    except BaseException: pass",
}  # fmt: skip


@pytest.mark.parametrize("what", DEAF)
def test_a_cell_that_does_not_heed_its_timeout_loses_its_kernel(what: str, fresh: Sandbox) -> None:
    run(fresh, "open('stays', 'w').write('here')\ngone = 1").check()
    cell = fresh.run_code(DEAF[what], timeout=0.3)
    assert cell.status is CellStatus.DIED
    assert cell.death
    assert run(fresh, "open('stays').read(), 'gone' in globals()").text == "('here', False)"


# Python does not hear of an interrupt until its end if it comes just when a wait begins.
_BEGUN_SECONDS = 0.5


def test_an_interrupt_ends_a_cell_and_says_so(sandbox: Sandbox, patient: None) -> None:
    run(sandbox, "import time").check()
    kernel = next(each.id for each in sandbox.kernels.list() if each.is_main)
    for code in ("while True: pass", "time.sleep(1000)"):
        cell = interrupted(sandbox, f"print('up')\n{code}", kernel, pause=_BEGUN_SECONDS)
        assert cell.status is CellStatus.INTERRUPTED
        assert cell.error is not None
        assert cell.error.name == "KeyboardInterrupt"


def test_an_interrupted_cell_tidies_up(sandbox: Sandbox, patient: None) -> None:
    run(sandbox, "import time\nx = 1").check()
    kernel = next(each.id for each in sandbox.kernels.list() if each.is_main)
    code = (
        "x = 2\ntry:\n    print('up')\n    time.sleep(1000)\nfinally:\n    print('tidied')\nx = 3"
    )
    cell = interrupted(sandbox, code, kernel, pause=_BEGUN_SECONDS)
    assert (cell.status, cell.stdout) == (CellStatus.INTERRUPTED, "up\ntidied\n")
    assert sandbox.run_code("x").text == "2"


# --- damage and death --------------------------------------------------------------------------------------------------

DAMAGE = {
    "streams": "import sys; sys.stdout = sys.stderr = None",
    "closed streams": "import sys; sys.stdout.close(); sys.stderr.close()",
    "descriptors": "import os; os.close(1); os.close(2)",
    "signals": "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "a built-in name": "import builtins; builtins.repr = builtins.type = None",
    "print": "print = None",
    "modules": "import sys; sys.modules.clear()",
    "hooks": "import sys; sys.displayhook = sys.excepthook = None",
    "the garbage": "import gc; gc.disable(); gc.set_threshold(1)",
    "its directory": "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
    "its own names": "globals().clear()",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_kernel_outlives_what_cells_break(what: str, fresh: Sandbox) -> None:
    fresh.run_code(DAMAGE[what]).check()
    assert fresh.run_code("1 + 1").text == "2"
    assert fresh.run_code("import os; _ = os.write(1, b'shown')").stdout == "shown"
    cell = fresh.run_code("1 / 0")
    assert cell.error is not None
    assert cell.error.name == "ZeroDivisionError"


# What ends a kernel, and what is told of it.
DEATHS = {
    "import os; os._exit(3)": "the kernel exited with 3",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "the kernel was ended by SIGKILL",
    "import os; os.abort()": "the kernel was ended by SIGABRT",
    "import ctypes; ctypes.string_at(0)": "the kernel was ended by SIGSEGV",
    "import os; os.write(200, b'\\xff' * 100)": "the kernel broke the protocol",
}


@pytest.mark.parametrize("code", DEATHS)
def test_a_death_is_told_and_the_next_cell_has_a_new_kernel(code: str, fresh: Sandbox) -> None:
    run(fresh, "gone = 1\nopen('stays', 'w').write('here')").check()
    cell = fresh.run_code(code)
    assert cell.status is CellStatus.DIED
    assert cell.death.startswith(DEATHS[code])
    assert run(fresh, "open('stays').read(), 'gone' in globals()").text == "('here', False)"


def test_a_restart_gives_a_new_kernel(sandbox: Sandbox) -> None:
    run(sandbox, "before = 1").check()
    kernel = next(each.id for each in sandbox.kernels.list() if each.is_main)
    sandbox.kernels.restart(kernel)
    assert sandbox.run_code("'before' in globals()").text == "False"


def test_programs_have_no_part_in_the_channel(sandbox: Sandbox) -> None:
    code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import os; print(sorted(map(int, os.listdir(\"/proc/self/fd\"))))'])\nNone"
    assert sandbox.run_code(code).stdout == "[0, 1, 2, 3]\n"


# --- where kernels are -------------------------------------------------------------------------------------------------


def test_kernels_of_one_sandbox_are_apart_and_side_by_side(sandbox: Sandbox) -> None:
    other = sandbox.kernels.open("python", cwd="/tmp", envs={"GIVEN": "yes"})
    run(sandbox, "mine = 1").check()
    code = "import os\n'mine' in globals(), os.getcwd(), os.environ['GIVEN']"
    assert sandbox.run_code(code, kernel=other.id).text == "(False, '/tmp', 'yes')"
    begun = threading.Event()
    waiting = "import os, time\nprint('up')\nwhile not os.path.exists('go'): time.sleep(0.01)"
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(sandbox.run_code, waiting, timeout=60, on_stdout=lambda _: begun.set())
        try:
            assert begun.wait(60)
            assert sandbox.run_code("'quick'", kernel=other.id).text == "'quick'"
            assert not slow.done()
        finally:
            sandbox.files.write("go", "")
        assert slow.result().ok
    sandbox.files.remove("go")
    sandbox.kernels.close(other.id)
