"""Cells of JavaScript: what they keep, show and print, and how they end."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from atoll import Sandbox
from atoll.model.kernel import Cell, CellStatus
from tests.kernels.interrupts import interrupted
from tests.kernels.node_presence import needs_node

pytestmark = needs_node

_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def sandbox(engine: str) -> Iterator[Sandbox]:
    """A sandbox with one Node, which these tests leave as useful as they found it."""
    with Sandbox(template="node", engine=engine) as sandbox:
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
    "nothing": (["undefined"], None),
    "null": (["null"], "null"),
    "an object": (["({ a: 1, b: [2, 3] })"], "{ a: 1, b: [ 2, 3 ] }"),
    "a map": (["new Map([[1, 'x']])"], "Map(1) { 1 => 'x' }"),
    "a large integer": (["2n ** 70n"], "1180591620717411303424n"),
    "an object's own way to show itself": (
        ["({ [require('util').inspect.custom]: () => '<mine>' })"], "<mine>",
    ),
    "a getter is not called": (["({ get a() { throw 1 } })"], "{ a: [Getter] }"),
    "an assignment": (["seven = 7"], "7"),
    "a declaration": (["const silent = 1"], None),
    "a declaration after a value": (["5; let silent = 6"], None),
    "a function": (["function silent() {}"], None),
    "a loop": (["for (const each of [1]) each"], None),
    "a condition": (["if (true) { 'then' } else { 'else' }"], "'then'"),
    "a block that is tried": (["try { 'tried' } finally {}"], "'tried'"),
    "with a semicolon": (["'end';;"], "'end'"),
    "before a comment": (["'end' // of it"], "'end'"),
    "a comment alone": (["// nothing"], None),
    "no code": ([""], None),
    "a first line for a shell": (["#!/usr/bin/env node\n'here'"], "'here'"),
    "a first line for a shell, and a wait": (["#!/usr/bin/env node\nawait 'here'"], "'here'"),
    "line ends of another system": (["let one = 1\r\nlet two = 2\r\none + two"], "3"),
    "a promise": (["Promise.resolve('kept')"], "'kept'"),
    "a promise that takes its time": (
        ["new Promise((done) => setTimeout(() => done('late'), 30))"], "'late'",
    ),
    "a promise of a promise": (["(async () => Promise.resolve(3))()"], "3"),
    "what behaves as a promise": (["({ then: (done) => done('thenable') })"], "'thenable'"),
    "await": (["const got = await Promise.resolve(4); got + 1", "got"], "4"),
    "await in parentheses": (["(await 1, await 2)"], "2"),
    "await in a condition": (["if (await true) { 'waited' }"], "'waited'"),
    "await in a loop": (
        ["let sum = 0; for await (const each of [1, Promise.resolve(2)]) sum += each", "sum"], "3",
    ),
    "await as a name": (["var await = 5; await"], "5"),
    "the last value": (["6 * 7", "_"], "42"),
    "the last value that was one": (["NaN", "'after'", "_"], "'after'"),
    "a name for it that a cell chose": (["const _ = { map: 'mine' }; 1", "2", "_.map"], "'mine'"),
    "the language's own classes": (["[] instanceof Array && new Error() instanceof Error"], "true"),
    "what modules make is of the same classes": (
        ["require('url').parse('/?a=1', true).query instanceof Object || Buffer.from('') instanceof Uint8Array"],
        "true",
    ),
    "the global object": (["this === globalThis"], "true"),
    "functions have names": (["const named = () => {}; const Kind = class {}; [named.name, Kind.name]"],
                             "[ 'named', 'Kind' ]"),
    "a strict cell": (["'use strict'; let strict = 3; (function () { return this })()"], None),
    "a strict cell's names": (["'use strict'; const { strictly } = { strictly: 4 }", "strictly"], "4"),
    "exports are only declared": (["export const exported = 1; export default function also() {}",
                                   "[exported, typeof also]"], "[ 1, 'function' ]"),
    "a default export": (["export default (1, 2)"], "2"),
    "eval": (["eval('let inner = 3; inner')"], "3"),
    "half of a pair of surrogates": (["JSON.stringify(['\\ud800'])"], "'[\"\\\\ud800\"]'"),
    "a text outside of ASCII": (["'ü€𝄞'"], "'ü€𝄞'"),
    "a script that fetches": (["(await (await fetch('data:text/plain,hi')).text())"], "'hi'"),
    "a cell of a hundred thousand lines": (["let lines = 0\n" + "lines++\n" * 100_000 + "lines"], "100000"),
    "the directory": (["[process.cwd(), __dirname]"], "[ '/workspace', '/workspace' ]"),
    "no arguments": (["[process.argv.length, process.execArgv.length]"], "[ 1, 0 ]"),
    "standard input is at its end": (["require('fs').readFileSync(0, 'utf8')"], "''"),
    "a cell's own URL": (["import.meta.dirname"], "'/workspace'"),
}  # fmt: skip


@pytest.mark.parametrize("what", VALUES)
def test_a_cell_shows(what: str, sandbox: Sandbox) -> None:
    cells, text = VALUES[what]
    cell = run(sandbox, *cells)
    assert cell.status is CellStatus.OK, cell.error
    assert cell.text == text


# What is run, one cell after the other, and the text of the last one's value.
STATE: dict[str, tuple[list[str], str]] = {
    "let": (["let x = 1", "x"], "1"),
    "const": (["const x = 1", "x"], "1"),
    "var": (["var x = 1; var x = 2", "x"], "2"),
    "a class": (["class A { n = 3 }", "new A().n"], "3"),
    "a function": (["function f() { return 4 }", "f()"], "4"),
    "a generator": (["function* g() { yield 5 }", "[...g()]"], "[ 5 ]"),
    "let again": (["let x = 1", "let x = 2", "x"], "2"),
    "let again without a value": (["let x = 1", "let x; typeof x"], "'undefined'"),
    "const again": (["const x = 1", "const x = 2", "x"], "2"),
    "const, then let": (["const x = 1", "let x = 2; x = 3", "x"], "3"),
    "let, then var": (["let x = 1", "var x = 2", "x"], "2"),
    "var, then const": (["var x = 1", "const x = 2", "x"], "2"),
    "no value before a declaration, whatever was before": (
        ["var x = 1", "let found; try { found = x } catch (e) { found = e.name } let x = 2; found"],
        "'ReferenceError'"),
    "const, then a function": (["const f = 1", "function f() { return 2 }", "f()"], "2"),
    "a function, then const": (["function f() {}", "const f = 3", "f"], "3"),
    "a class again": (["class A { n = 1 }", "class A { n = 2 }", "new A().n"], "2"),
    "a class, then a function": (["class A {}", "function A() { return 5 }", "A()"], "5"),
    "an import again": (["import { join } from 'path'", "import { join } from 'node:path'", "join('a', 'b')"],
                        "'a/b'"),
    "what was destructured": (["const { a, b: [c, ...d], ...e } = { a: 1, b: [2, 3, 4], f: 5 }",
                               "[a, c, d, e]"], "[ 1, 2, [ 3, 4 ], { f: 5 } ]"),
    "defaults": (["const { x: { y = 4 } = {} } = {}, [z = y] = []", "[y, z]"], "[ 4, 4 ]"),
    "several in one": (["let a = 1, b, c = a + 1", "[a, b, c]"], "[ 1, undefined, 2 ]"),
    "without semicolons": (["let a = 1\nlet [b] = [2]\nlet { c } = { c: 3 }\n;[a, b, c]"], "[ 1, 2, 3 ]"),
    "a declaration before parentheses": (["let before = []\nlet y\n(before.push(1))\nbefore"], "[ 1 ]"),
    "a block has its own": (["let x = 1; { let x = 2; { const x = 3 } }", "x"], "1"),
    "a loop has its own": (["let i = 'out'; for (let i = 0; i < 3; i++);", "i"], "'out'"),
    "each turn has its own": (["const fs = []; for (let i = 0; i < 3; i++) fs.push(() => i)",
                               "fs.map((f) => f())"], "[ 0, 1, 2 ]"),
    "a function has its own": (["let x = 1; function f(x) { x = 2; var y = x; return y }", "f(); x"], "1"),
    "a catch has its own": (["let e = 1; try { throw 2 } catch (e) { e = 3 }", "e"], "1"),
    "var of a block": (["{ var inner = 5 }", "inner"], "5"),
    "var of a loop": (["for (var i = 0; i < 3; i++);", "i"], "3"),
    "functions see later values": (["let x = 1; const f = () => x", "x = 2", "f()"], "2"),
    "functions see later declarations": (["let x = 1; const f = () => x", "let x = 3", "f()"], "3"),
    "functions see functions declared again": (
        ["function a() { return b() } function b() { return 1 }", "function b() { return 2 }", "a()"], "2"),
    "functions are there before their line": (["var early = f(); function f() { return 6 }", "early"], "6"),
    "also in a cell that waits": (["var early = f(); await 0; function f() { return 7 }", "[early, f()]"],
                                  "[ 7, 7 ]"),
    "let of a cell that waits": (["let x = await 1, y = x + 1", "[x, y]"], "[ 1, 2 ]"),
    "var of a cell that waits": (["await 0; { var x = 1 } for (var i = 0; i < 2; i++); var { y } = { y: 3 }",
                                  "[x, i, y]"], "[ 1, 2, 3 ]"),
    "a class of a cell that waits": (["await 0; class A { static n = await1() } function await1() { return 8 }",
                                      "A.n"], "8"),
    "a later cell may change a constant": (["const x = 1", "x = 2; x"], "2"),
    "names that Node has": (["const crypto = require('crypto'), URL = 'mine'",
                             "[typeof crypto.createHash, URL]"], "[ 'function', 'mine' ]"),
    "timers go on between cells": (["var ticks = 0; const timer = setInterval(() => ticks++, 1); 0",
                                    "while (ticks < 2) await new Promise((r) => setTimeout(r, 1)); clearInterval(timer)",
                                    "ticks > 1"], "true"),
    "servers answer between cells": (
        ["const server = require('http').createServer((_, a) => a.end('served')).listen(0); 0",
         "await (await fetch(`http://127.0.0.1:${server.address().port}`)).text()"], "'served'"),
}  # fmt: skip


@pytest.mark.parametrize("what", STATE)
def test_a_session_keeps(what: str, sandbox: Sandbox) -> None:
    cells, text = STATE[what]
    cell = run(sandbox, *cells)
    assert cell.status is CellStatus.OK, cell.error
    assert cell.text == text


# Code that fails, and what is told of it: name, text, and a line of the traceback.
ERRORS: dict[str, tuple[str, str, str, str]] = {
    "thrown": ("throw new TypeError('bad')", "TypeError", "bad", "    at <cell N>:1:7"),
    "in a function": ("function f() {\n  throw new Error('deep')\n}\nf()", "Error", "deep",
                      "    at f (<cell N>:2:9)"),
    "the line is shown": ("let a = 1\nnull.x", "TypeError", "Cannot read properties of null (reading 'x')",
                          "     ^"),
    "in a class on one line": ("class A { m() { throw new Error('m') } }; new A().m()", "Error", "m",
                               "    at A.m (<cell N>:1:23)"),
    "after what was changed": ("let x; class B {}; throw new Error('col')", "Error", "col",
                               "    at <cell N>:1:26"),
    "after an import of many lines": ("import {\n  join,\n} from 'path'\nthrow new Error('four')", "Error",
                                      "four", "    at <cell N>:4:7"),
    "after an export of many lines": ("let a = 1\nexport {\n  a,\n}\nthrow new Error('five')", "Error",
                                      "five", "    at <cell N>:5:7"),
    "after await": ("async function f() { await null; throw new Error('late') }\nawait f()", "Error", "late",
                    "    at async <cell N>:2:1"),
    "of a class of its own": ("class Mine extends Error {}; throw new Mine('own')", "Mine", "own",
                              "    at <cell N>:1:36"),
    "with more to tell": ("throw Object.assign(new Error('more'), { code: 'E_MORE' })", "Error", "more",
                          "  code: 'E_MORE'"),
    "with a cause": ("throw new Error('outer', { cause: new RangeError('inner') })", "Error", "outer",
                     "  [cause]: RangeError: inner"),
    "several": ("throw new AggregateError([new Error('one')], 'all')", "AggregateError", "all",
                "    Error: one"),
    "no error": ("throw 'text'", "Uncaught", "'text'", "Uncaught 'text'"),
    "nothing": ("throw undefined", "Uncaught", "undefined", "Uncaught undefined"),
    "a promise that fails": ("Promise.reject(new Error('no'))", "Error", "no", "    at <cell N>:1:16"),
    "a promise that nobody waits for": ("Promise.reject(new Error('lost')); 0", "Error", "lost",
                                        "    at <cell N>:1:16"),
    "in a callback": ("setTimeout(() => { throw new Error('timer') }, 1); 0", "Error", "timer",
                      "    at Timeout._onTimeout (<cell N>:1:26)"),
    "in the next tick": ("process.nextTick(() => { throw new Error('tick') }); 0", "Error", "tick",
                         "    at <cell N>:1:32"),
    "while it waits": ("setTimeout(() => { throw new Error('other') }, 5); await new Promise(() => {})",
                       "Error", "other", "    at Timeout._onTimeout (<cell N>:1:26)"),
    "an event that nobody takes": ("new (require('events'))().emit('error', new Error('event'))", "Error",
                                   "event", "    at <cell N>:1:41"),
    "its own constant": ("const fixed = 1; fixed = 2", "TypeError", "Assignment to constant variable.",
                         "    at <cell N>:1:24"),
    "its own constant, in a function": ("const fixed = 1; function f() { fixed++ } f()", "TypeError",
                                        "Assignment to constant variable.", "    at f (<cell N>:1:38)"),
    "its own constant, by a pattern": ("const fixed = 1; ({ fixed } = { fixed: 2 })", "TypeError",
                                       "Assignment to constant variable.", "TypeError: Assignment to constant variable."),
    "what is imported": ("import { sep } from 'path'; sep = 1", "TypeError",
                         "Assignment to constant variable.", "TypeError: Assignment to constant variable."),
    "before its declaration": ("soon; let soon = 1", "ReferenceError", "soon is not defined",
                               "    at <cell N>:1:1"),
    "within its declaration": ("let itself = itself", "ReferenceError", "itself is not defined",
                               "ReferenceError: itself is not defined"),
    "syntax": ("let a = 1\nlet b = ;", "SyntaxError", "Unexpected token ';'", "        ^"),
    "syntax, and where": ("let a = 1\nlet b = ;", "SyntaxError", "Unexpected token ';'", "<cell N>:2"),
    "syntax of a cell that waits": ("await 1\nlet = = 2", "SyntaxError", "Unexpected token '='", "<cell N>:2"),
    "syntax of a cell that imports": ("import fs from 'fs'\nfs.(", "SyntaxError", "Unexpected token", "<cell N>:2"),
    "twice in one cell": ("let one = 1; let one = 2", "SyntaxError",
                          "Identifier 'one' has already been declared", "<cell N>:1"),
    "a return": ("return 5", "SyntaxError", "Illegal return statement", "<cell N>:1"),
    "await in a function": ("function f() { await 1 }", "SyntaxError",
                            "await is only valid in async functions and the top level bodies of modules", "<cell N>:1"),
    "recursion without end": ("function f() { f() } f()", "RangeError", "Maximum call stack size exceeded",
                              "    at f (<cell N>:1:16)"),
    "a name that a module lacks": ("import { nope } from 'path'", "SyntaxError",
                                   "The requested module 'path' does not provide an export named 'nope'", "<cell N>:1"),
    "a module that is not there": ("require('no-such-module')", "Error", "Cannot find module 'no-such-module'\nRequire stack:\n- /workspace/[cell]",
                                   "  code: 'MODULE_NOT_FOUND',"),
    "process.exit": ("process.exit(3)", "ProcessExit", "process.exit(3) ended this cell; its kernel lives on",
                     "    at <cell N>:1:9"),
    "one that fails itself": ("throw { [require('util').inspect.custom]() { throw 1 } }", "Uncaught",
                              "(it fails when it is looked at)", "Uncaught (it fails when it is looked at)"),
}  # fmt: skip


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_tells(what: str, sandbox: Sandbox) -> None:
    code, name, value, line = ERRORS[what]
    cell = sandbox.run_code(code)
    assert cell.status is CellStatus.ERROR
    assert cell.error is not None
    assert (cell.error.name, cell.error.value) == (name, value)
    lines = [each.rstrip(" {") for each in cell.error.traceback]
    assert line.replace("cell N", f"cell {cell.execution_count}") in lines
    assert not [each for each in lines if "/opt/atoll" in each or "node:internal" in each]
    assert sandbox.run_code("'alive'").text == "'alive'"


def test_what_a_failed_cell_was_to_replace_stays(sandbox: Sandbox) -> None:
    run(sandbox, "const table = 'old'")
    assert sandbox.run_code("const table = nowhere()").status is CellStatus.ERROR
    assert sandbox.run_code("table").text == "'old'"


def test_a_stack_that_a_cell_reads_has_nothing_of_the_kernel(sandbox: Sandbox) -> None:
    cell = sandbox.run_code("class C { static s = new Error('x').stack }; console.trace('t'); C.s")
    assert cell.text is not None
    assert cell.text.count("at ") <= 3
    for text in (cell.text, cell.stderr):
        assert "/opt/atoll" not in text
        assert f"<cell {cell.execution_count}>:1:" in text


# What is run, and what it prints to its output and to its error output.
PRINTED: dict[str, tuple[str, str, str]] = {
    "log, info and debug": ("console.log('a'); console.info('b'); console.debug('c')", "a\nb\nc\n", ""),
    "error and warn": ("console.error('a'); console.warn('b')", "", "a\nb\n"),
    "formats": ("console.log('%s is %d', 'x', 5)", "x is 5\n", ""),
    "objects": ("console.log({ a: [1] })", "{ a: [ 1 ] }\n", ""),
    "groups": ("console.group('g'); console.log('in'); console.groupEnd(); console.log('out')",
               "g\n  in\nout\n", ""),
    "failed assertions": ("console.assert(false, 'not so')", "", "Assertion failed: not so\n"),
    "bytes": ("process.stdout.write(Buffer.from([0x61, 0xff, 0x62])); 0", "a\ufffdb", ""),
    "no end of line": ("process.stdout.write('x'); 0", "x", ""),
    "half of a pair of surrogates": ("console.log('\\ud800')", "\ufffd\n", ""),
    "microtasks": ("Promise.resolve().then(() => console.log('then')); queueMicrotask(() => console.log('micro')); 0",
                   "then\nmicro\n", ""),
    "ticks and immediates": ("setImmediate(() => console.log('immediate')); process.nextTick(() => console.log('tick')); 0",
                             "tick\nimmediate\n", ""),
    "immediates of immediates": ("setImmediate(() => setImmediate(() => console.log('second'))); 0", "second\n", ""),
    "short timers": ("for (let i = 0; i < 3; i++) setTimeout(() => console.log(i), i); 0", "0\n1\n2\n", ""),
    "a file that is read": ("require('fs').readFile('/etc/hostname', () => console.log('read')); 0", "read\n", ""),
    "programs that share its output": ("require('child_process').execSync('echo child', { stdio: 'inherit' }); console.log('own')",
                                       "child\nown\n", ""),
    "errors of programs": ("require('child_process').execSync('echo oops >&2'); 0", "", "oops\n"),
    "an ended output": ("process.stdout.end('last'); process.stdout.write('more'); 0", "lastmore", ""),
    "a destroyed output": ("process.stdout.destroy(); console.log('still')", "still\n", ""),
}  # fmt: skip


@pytest.mark.parametrize("what", PRINTED)
def test_a_cell_prints(what: str, sandbox: Sandbox) -> None:
    code, stdout, stderr = PRINTED[what]
    cell = sandbox.run_code(code)
    assert cell.status is CellStatus.OK, cell.error
    assert (cell.stdout, cell.stderr) == (stdout, stderr)


def test_what_is_printed_much_later_comes_with_a_later_cell(sandbox: Sandbox) -> None:
    cell = sandbox.run_code(once_told("console.log('later')") + "'now'")
    assert (cell.text, cell.stdout) == ("'now'", "")
    tell(sandbox)
    assert sandbox.run_code("0").stdout == "later\n"


def once_told(what: str) -> str:
    """Return code that does something between cells, as soon as it is told to."""
    return f"""
        (function again() {{
            setTimeout(() => {{
                if (!require('fs').existsSync('told')) return again();
                require('fs').unlinkSync('told');
                {what};
            }}, 60);
        }})();
    """


def tell(sandbox: Sandbox) -> None:
    """Have it done now, while no cell runs."""
    sandbox.files.write("told", "")
    while sandbox.files.exists("told"):
        time.sleep(0.01)


def test_an_error_between_cells_is_told_and_ends_nothing(sandbox: Sandbox) -> None:
    run(sandbox, "let kept = 5; 0")
    for throw, error in (
        ("throw new Error('boom')", "Error: boom"),
        ("Promise.reject(new Error('bang'))", "Error: bang"),
    ):
        run(sandbox, once_told(throw) + "0").check()
        tell(sandbox)
        assert error in run(sandbox, "0").check().stderr
    assert sandbox.run_code("kept").text == "5"


def test_a_listener_of_the_cells_gets_what_nobody_catches(fresh: Sandbox) -> None:
    run(fresh, "process.on('uncaughtException', (error) => console.log('took', error.message)); 0")
    cell = fresh.run_code("setTimeout(() => { throw new Error('mine') }, 1); 0")
    assert (cell.status, cell.stdout) == (CellStatus.OK, "took mine\n")


def test_ten_megabytes_of_output_end_well(sandbox: Sandbox) -> None:
    cell = sandbox.run_code("for (let i = 0; i < 1000; i++) console.log('x'.repeat(9999)); 'done'")
    assert cell.text == "'done'"
    assert cell.truncated
    assert set(cell.stdout) == {"x", "\n"}
    received: list[str] = []
    sandbox.run_code("process.stdout.write('y'.repeat(10_000_000)); 0", on_stdout=received.append)
    assert sum(map(len, received)) == 10_000_000


def test_a_value_of_ten_megabytes_is_cut_with_a_note(sandbox: Sandbox) -> None:
    cell = sandbox.run_code("'z'.repeat(10_000_000)")
    assert cell.text is not None
    assert "10000002 characters in all" in cell.text
    cell = sandbox.run_code("display.html('z'.repeat(10_000_000))")
    assert cell.html is None
    assert "characters in all" in cell.results[0].data["text/plain"]


# What is displayed, and what becomes of it.
SHOWN: dict[str, tuple[str, dict[str, object]]] = {
    "html": ("display.html('<b>x</b>')", {"text/html": "<b>x</b>"}),
    "a template": ("display.html`<b>${1 + 1}</b>`", {"text/html": "<b>2</b>"}),
    "markdown": ("display.markdown('# x')", {"text/markdown": "# x"}),
    "latex": ("display.latex('$x$')", {"text/latex": "$x$"}),
    "svg": ("display.svg('<svg></svg>')", {"image/svg+xml": "<svg></svg>"}),
    "javascript": ("display.javascript('alert(1)')", {"application/javascript": "alert(1)"}),
    "json": ("display.json({ a: [1, null] })", {"application/json": {"a": [1, None]}}),
    "bytes of a PNG": (f"display.png(Buffer.from('{_PNG}', 'base64'))", {"image/png": _PNG}),
    "an image": (f"display.image(new Uint8Array(Buffer.from('{_PNG}', 'base64')))", {"image/png": _PNG}),
    "an image in base64": (f"display.image('{_PNG}')", {"image/png": _PNG}),
    "an image as a URL": (f"display.image('data:image/png;base64,{_PNG}')", {"image/png": _PNG}),
    "a JPEG": ("display.image(Buffer.from('ffd8ffe000', 'hex'))", {"image/jpeg": "/9j/4AA="}),
    "an SVG as an image": ("display.image('<svg/>')", {"image/svg+xml": "<svg/>"}),
    "a PDF": ("display.pdf(Buffer.from('%PDF-'))", {"application/pdf": base64.b64encode(b"%PDF-").decode()}),
    "a value": ("display([1, 2])", {"text/plain": "[ 1, 2 ]"}),
    "several forms": ("display.mime({ 'text/html': '<i>', 'text/plain': 'i' })",
                      {"text/html": "<i>", "text/plain": "i"}),
    "an object's own forms": ("({ [Symbol.for('Jupyter.display')]: () => ({ 'text/html': '<u>' }) })",
                              {"text/html": "<u>"}),
    "its forms, in time": ("({ [Symbol.for('Jupyter.display')]: async () => ({ 'text/html': '<u>' }) })",
                           {"text/html": "<u>"}),
    "an older way to it": ("({ _toHtml: () => '<s>', _toPng: () => Buffer.from('png') })",
                           {"text/html": "<s>", "image/png": base64.b64encode(b"png").decode()}),
    "half of a pair of surrogates": ("display.json(['\\ud800'])", {"application/json": ["\ufffd"]}),
    "what is nested too deeply": ("display.json(JSON.parse('['.repeat(200) + ']'.repeat(200)))",
                                  {"text/plain": "[ [ [ [Array] ] ] ]"}),
    "what contains itself": ("const ring = {}; ring.ring = ring; display.json(ring)",
                             {"text/plain": "<ref *1> { ring: [Circular *1] }"}),
}  # fmt: skip


@pytest.mark.parametrize("what", SHOWN)
def test_a_cell_displays(what: str, sandbox: Sandbox) -> None:
    code, forms = SHOWN[what]
    cell = sandbox.run_code(code)
    assert cell.status is CellStatus.OK, cell.error
    (shown,) = cell.results
    assert {kind: shown.data.get(kind) for kind in forms} == forms
    assert isinstance(shown.data["text/plain"], str)


def test_displays_are_where_they_belong_and_can_be_replaced_and_cleared(sandbox: Sandbox) -> None:
    events = list(
        sandbox.stream_code("console.log('a'); display.html('<b>'); console.log('c'); 'd'")
    )
    kinds = [type(event).__name__ for event in events[:-1]]
    assert kinds == ["Output", "Bundle", "Output", "Bundle"]
    cell = sandbox.run_code("const shown = display('old'); display('other'); shown.update('new')")
    assert [each.data["text/plain"] for each in cell.results] == ["'new'", "'other'"]
    cell = sandbox.run_code("display('old', { id: 'x' }); display.update('x', 'new')")
    assert [each.data["text/plain"] for each in cell.results] == ["'new'"]
    cell = sandbox.run_code("console.log('gone'); display(1); display.clear(); console.log('here')")
    assert (cell.stdout, cell.results) == ("here\n", ())


def test_an_image_that_is_none_is_refused_with_the_way_out(sandbox: Sandbox) -> None:
    cell = sandbox.run_code("display.image(Buffer.from('nothing'))")
    assert cell.error is not None
    assert "display.image(bytes, { type:" in cell.error.value


# --- modules ---------------------------------------------------------------------------------------------------------

FILES = {
    "plain.js": "exports.name = 'plain'; exports.folder = __dirname",
    "lib/deep.mjs": "export const deep = 'deep'; export default class Deep {}",
    "data.json": '{"n": 5}',
    "node_modules/old/package.json": '{"name": "old", "main": "main.js"}',
    "node_modules/old/main.js": "module.exports = function old() { return 'old' }",
    "node_modules/new/package.json": '{"name": "new", "type": "module", "exports": {"./part": "./part.js", ".": "./all.js"}}',
    "node_modules/new/all.js": "export const whole = await Promise.resolve('all')",
    "node_modules/new/part.js": "export default 'part'",
    "sub/here.js": "module.exports = 'sub'",
}
LOADED = {
    "a file": ("require('./plain').name", "'plain'"),
    "a file by its whole path": ("require('/workspace/plain.js').folder", "'/workspace'"),
    "JSON": ("require('./data.json').n", "5"),
    "a package": ("require('old')()", "'old'"),
    "a module of Node's": ("require('node:path').basename('/a/b')", "'b'"),
    "an import of a file": ("import Deep, { deep } from './lib/deep.mjs'; [Deep.name, deep]", "[ 'Deep', 'deep' ]"),
    "an import under another name": ("import { deep as shallow } from './lib/deep.mjs'; shallow", "'deep'"),
    "an import of all": ("import * as all from './lib/deep.mjs'; Object.keys(all)", "[ 'deep', 'default' ]"),
    "an import of JSON": ("import data from './data.json' with { type: 'json' }; data.n", "5"),
    "an import of an old package": ("import old from 'old'; old()", "'old'"),
    "an import of a new package": ("import { whole } from 'new'; whole", "'all'"),
    "an import of a part of one": ("import part from 'new/part'; part", "'part'"),
    "an import for its effect": ("import 'new'; 1", "1"),
    "an import as an expression": ("(await import('new')).whole", "'all'"),
    "an import in a function": ("const load = () => import('./lib/deep.mjs'); (await load()).deep", "'deep'"),
    "where something is": ("require.resolve('old')", "'/workspace/node_modules/old/main.js'"),
    "a URL of something": ("import.meta.resolve('./plain.js')", "'file:///workspace/plain.js'"),
}  # fmt: skip


@pytest.fixture(scope="module")
def modules(engine: str) -> Iterator[Sandbox]:
    """A sandbox with some files to load."""
    with Sandbox(template="node", engine=engine, files=FILES) as sandbox:
        yield sandbox


@pytest.mark.parametrize("what", LOADED)
def test_a_cell_loads(what: str, modules: Sandbox) -> None:
    code, text = LOADED[what]
    cell = modules.run_code(code)
    assert cell.status is CellStatus.OK, cell.error
    assert cell.text == text


def test_a_cell_loads_from_where_the_kernel_is(modules: Sandbox) -> None:
    kernel = modules.kernels.open("node", cwd="/workspace/sub", envs={"GIVEN": "yes"})
    cell = modules.run_code("[require('./here.js'), process.env.GIVEN]", kernel=kernel.id)
    assert cell.text == "[ 'sub', 'yes' ]"
    modules.run_code("process.chdir('..')", kernel=kernel.id)
    cell = modules.run_code(
        "[require('./plain').name, (await import('./plain.js')).name]", kernel=kernel.id
    )
    assert cell.text == "[ 'plain', 'plain' ]"
    modules.kernels.close(kernel.id)


def test_types_are_taken_out_where_something_can(sandbox: Sandbox) -> None:
    code = "interface P { n: number }\nconst p: P = { n: 5 as number }\np.n"
    cell = sandbox.run_code(code, language="typescript")
    if sandbox.run_code("typeof require('module').stripTypeScriptTypes").text == "'function'":
        assert cell.text == "5"
    else:
        assert cell.error is not None
        assert cell.error.name == "SyntaxError"
        assert "Node 22.13 or newer" in "\n".join(cell.error.traceback)
        assert "'typescript' in the workspace" in "\n".join(cell.error.traceback)


# --- input, completion -------------------------------------------------------------------------------------------------


def test_a_cell_can_ask(sandbox: Sandbox) -> None:
    asked: list[tuple[str, bool]] = []

    def answer(prompt: str, password: bool) -> str:
        asked.append((prompt, password))
        return f"<{prompt}>"

    cell = sandbox.run_code("prompt('a?') + await input('b?', { password: true })", on_input=answer)
    assert cell.text == "'<a?><b?>'"
    assert asked == [("a?", False), ("b?", True)]
    code = "await Promise.all([input('1'), input('2')])"
    assert sandbox.run_code(code, on_input=answer).text == "[ '<1>', '<2>' ]"


def test_a_cell_that_asks_nobody_is_told_so(sandbox: Sandbox) -> None:
    assert sandbox.run_code("prompt('?')").text == "null"
    assert sandbox.run_code("prompt('?', 'preset')").text == "'preset'"
    cell = sandbox.run_code("await input('?')")
    assert cell.error is not None
    assert "nobody is there to answer" in cell.error.value


def test_names_are_completed_without_running_anything(sandbox: Sandbox) -> None:
    run(
        sandbox,
        "let called = 0; const thing = { alpha: { beta: 1 }, get gamma() { called++; return {} } }",
    )

    def matches(code: str) -> list[str]:
        found = sandbox.complete(code)
        return list(found.matches)

    assert "thing" in matches("thi")
    assert matches("thing.al") == ["alpha"]
    assert matches("x = thing?.alpha.b") == ["beta"]
    assert matches("thing.gamma.x") == []
    assert matches("process.version.toUpp") == ["toUpperCase"]
    assert "const" in matches("con")
    assert "fs/promises" in matches("require('fs/")
    assert sandbox.run_code("called").text == "0"


def test_a_name_is_explained(sandbox: Sandbox) -> None:
    run(sandbox, "/* adds */ function add(a, b) { return a + b } let many = [1, 2, 3]")
    found = sandbox.inspect("add(1, 2)", 1)
    assert found is not None
    assert "function add(a, b)" in found.data["text/plain"]
    found = sandbox.inspect("many.length", 2)
    assert found is not None
    assert "[ 1, 2, 3 ]" in found.data["text/plain"]
    assert sandbox.inspect("nowhere", 3) is None


# --- interrupts ----------------------------------------------------------------------------------------------------------

# What does not end by itself; a cell of it ends in time, and its kernel lives on.
ENDLESS = {
    "a loop": "while (true) {}",
    "a loop that catches": "for (;;) { try { for (;;); } catch {} }",
    "a loop at the end of another": "try { for (;;); } finally { for (;;); }",
    "a loop after await": "await 1; while (true) {}",
    "a loop after a timer": "await new Promise((done) => setTimeout(done, 20)); while (true) {}",
    "a loop in a timer": "setTimeout(() => { while (true) {} }, 1); 0",
    "a loop in an immediate": "setImmediate(() => { while (true) {} }); 0",
    "microtasks": "(function again() { Promise.resolve().then(again) })(); 0",
    "await without end": "for (;;) await null",
    "a generator": "for await (const each of (async function* () { for (;;) yield 1 })());",
    "sleep": "await new Promise((done) => setTimeout(done, 1e6))",
    "sleep over and over": "for (;;) await new Promise((done) => setTimeout(done, 10))",
    "a promise that is never kept": "await new Promise(() => {})",
    "a promise as a value": "new Promise(() => {})",
    "a program": "require('child_process').execSync('sleep 1000')",
    "a busy program": "require('child_process').execSync('while :; do :; done')",
    "a thread": "await new Promise((done) => new (require('worker_threads').Worker)('for(;;);', { eval: true }).on('exit', done))",
    "a lock": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
    "a pattern": "/^(a+)+$/.test('a'.repeat(40) + '!')",
    "output": "for (;;) console.log('x'.repeat(100))",
    "displays": "for (;;) display(1)",
    "an object that never shows itself": "({ [require('util').inspect.custom]() { for (;;); } })",
    "an error without an end": "throw { [require('util').inspect.custom]() { for (;;); } }",
    "a listener for the signal": "process.on('SIGINT', () => {}); for (;;);",
    "many programs": "for (;;) require('child_process').spawnSync('true')",
}  # fmt: skip


@pytest.mark.parametrize("what", ENDLESS)
def test_a_cell_ends_at_its_limit_and_leaves_state(
    what: str, sandbox: Sandbox, patient: None
) -> None:
    run(sandbox, "let kept = 42")
    cell = sandbox.run_code(ENDLESS[what], timeout=0.5)  # it never ends by itself
    assert cell.status is CellStatus.TIMED_OUT, cell
    after = sandbox.run_code("console.log('heard'); console.error('too'); kept")
    assert (after.text, after.stdout, after.stderr) == ("42", "heard\n", "too\n")


def test_a_storm_of_processes_ends_at_its_limit(fresh: Sandbox) -> None:
    storm = "for (;;) require('child_process').spawn('sleep', ['1000']).on('error', () => {})"
    cell = fresh.run_code(storm, timeout=0.5)
    assert cell.status in (CellStatus.TIMED_OUT, CellStatus.DIED)
    assert fresh.run_code("'goes on'").text == "'goes on'"


def test_an_interrupt_ends_a_cell_and_says_so(sandbox: Sandbox, patient: None) -> None:
    run(sandbox, "0")
    (kernel,) = sandbox.kernels.list()
    for code in ("for (;;);", "await new Promise(() => {})"):
        cell = interrupted(sandbox, "console.log('up'); " + code, kernel.id)
        assert cell.status is CellStatus.INTERRUPTED
        assert cell.error is not None
        assert (cell.error.name, cell.error.value) == ("Interrupted", "the cell was interrupted")


def test_an_interrupt_between_cells_harms_nothing(sandbox: Sandbox) -> None:
    run(sandbox, "let unharmed = 1")
    for _ in range(3):
        sandbox.commands.run("pkill -INT -x node")
        assert sandbox.run_code("unharmed").text == "1"


def test_what_an_interrupted_cell_slept_for_does_not_come(sandbox: Sandbox, patient: None) -> None:
    code = "let turns = 0; for (;;) { turns++; await new Promise((done) => setTimeout(done, 5)) }"
    assert sandbox.run_code(code, timeout=0.3).status is CellStatus.TIMED_OUT
    before = sandbox.run_code("turns").text
    time.sleep(0.2)
    assert sandbox.run_code("turns").text == before


# --- damage and death --------------------------------------------------------------------------------------------------

DAMAGE = [
    "JSON = null", "Promise = null", "Array.prototype.push = null", "process.stdout = null", "console = null",
    "Array.prototype[Symbol.iterator] = undefined", "Object.keys = null", "String.prototype.split = null",
    "Function.prototype.call = null", "Symbol = 0", "setImmediate = setTimeout = null", "delete globalThis.process",
    "Object.prototype.toJSON = () => 1", "Buffer = null", "Error = null", "Map.prototype.get = Map.prototype.set = null",
    "Function.prototype.bind = null", "RegExp.prototype.exec = RegExp.prototype.test = null",
    "process.removeAllListeners(); 0", "Object.prototype.extra = Array.prototype.extra = 1",
    "Array.prototype.map = Array.prototype.filter = Array.prototype.find = null", "Promise.prototype.then = null",
    "String.prototype.slice = String.prototype.replace = null", "require('fs').writeSync = null",
    "require('fs').closeSync(1)", "require('util').inspect = null", "process.cwd = process.chdir = process.on = null",
    "globalThis.globalThis = null", "Object.defineProperty = Object.getOwnPropertyDescriptor = null",
    "Error.stackTraceLimit = 0", "Error.prepareStackTrace = () => { throw 1 }", "const process = 1",
    "const Promise = 5; let Array = 3; class Error {}", "Buffer.prototype.toString = Buffer.from = null",
    "require('vm').Script.prototype.runInThisContext = null", "require('events').prototype.emit = null",
    "process.exit = null", "process.chdir(require('fs').mkdtempSync('/tmp/x')); require('fs').rmdirSync(process.cwd())",
]  # fmt: skip


@pytest.mark.parametrize("code", DAMAGE)
def test_a_kernel_outlives_what_cells_break(code: str, fresh: Sandbox) -> None:
    fresh.run_code(code)
    assert fresh.run_code("1 + 1").text == "2"
    assert fresh.run_code("const kept = [1, 2]; await 0; kept.length").text == "2"
    cell = fresh.run_code("throw new TypeError('told')")
    assert cell.error is not None
    assert (cell.error.name, cell.error.value) == ("TypeError", "told")


# What ends a kernel, and the beginning of what is told of it.
DEATHS = {
    "process.kill(process.pid, 'SIGKILL'); for (;;);": "the kernel was ended by SIGKILL",
    "process.abort()": "the kernel was ended by SIGABRT",
    "process.reallyExit(3)": "the kernel exited with 3",
}


@pytest.mark.parametrize("code", DEATHS)
def test_a_death_is_told_and_the_next_cell_has_a_new_kernel(code: str, fresh: Sandbox) -> None:
    run(fresh, "let gone = 1; require('fs').writeFileSync('stays', 'here')")
    cell = fresh.run_code(code)
    assert cell.status is CellStatus.DIED
    assert cell.death.startswith(DEATHS[code])
    assert fresh.run_code("[typeof gone, require('fs').readFileSync('stays', 'utf8')]").text == (
        "[ 'undefined', 'here' ]"
    )


def test_a_restart_gives_a_new_kernel(sandbox: Sandbox) -> None:
    run(sandbox, "let before = 1")
    (kernel,) = sandbox.kernels.list()
    sandbox.kernels.restart(kernel.id)
    assert sandbox.run_code("typeof before").text == "'undefined'"


def test_programs_have_no_part_in_the_channel(sandbox: Sandbox) -> None:
    channel = sandbox.run_code("require('fs').readlinkSync('/proc/self/fd/9')").text
    assert channel is not None
    assert channel.startswith("'socket:")
    for options in ("{}", "{ stdio: 'inherit' }", "{ stdio: [0, 'inherit', 2] }"):
        program = "readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/9; cat"
        cell = sandbox.run_code(
            f"String(require('child_process').execSync('{program}', {options}))"
        )
        assert cell.ok
        assert ":[" in f"{cell.text}{cell.stdout}"
        assert channel.strip("'") not in f"{cell.text}{cell.stdout}"


# --- where kernels are -------------------------------------------------------------------------------------------------


def test_a_node_sandbox_speaks_javascript_and_others_do_when_asked(
    sandbox: Sandbox, engine: str
) -> None:
    assert sandbox.run_code("1 + 1").text == "2"
    assert [each.language for each in sandbox.kernels.list()] == ["node"]
    with Sandbox(engine=engine) as other:
        assert other.run_code("1 // 1").text == "1"
        for name in ("node", "javascript", "js", "typescript", "ts"):
            assert other.run_code("typeof require", language=name).text == "'function'"
        assert {each.language for each in other.kernels.list()} == {"python", "node"}


def test_kernels_of_one_sandbox_are_apart_and_side_by_side(sandbox: Sandbox) -> None:
    other = sandbox.kernels.open("node")
    run(sandbox, "var mine = 1")
    assert sandbox.run_code("typeof mine", kernel=other.id).text == "'undefined'"
    check_side_by_side(sandbox, other.id)
    sandbox.kernels.close(other.id)


def check_side_by_side(sandbox: Sandbox, other: str) -> None:
    """See that another kernel's cell comes to its end while one goes on and on."""
    begun, code = threading.Event(), "console.log('up'); while (!require('fs').existsSync('go'));"
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(sandbox.run_code, code, timeout=60, on_stdout=lambda _: begun.set())
        try:
            assert begun.wait(60)
            assert sandbox.run_code("'quick'", kernel=other).text == "'quick'"
            assert not slow.done()
        finally:
            sandbox.files.write("go", "")
        assert slow.result().ok
    sandbox.files.remove("go")


def test_a_pool_has_its_node_running(engine: str) -> None:
    Sandbox.warm(1, template="node", engine=engine)
    try:
        with Sandbox(template="node", engine=engine) as warm:
            (kernel,) = warm.kernels.list()
            assert kernel.language == "node"
            cell = warm.run_code("const first = [1]; first")
            assert (cell.text, cell.execution_count) == ("[ 1 ]", 1)
            assert warm.run_code("Object.keys(globalThis).includes('each') || _[0]").text == "1"
    finally:
        Sandbox.warm(0, template="node", engine=engine)
