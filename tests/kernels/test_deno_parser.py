"""The parser of Deno's kernel beside the one that Node carries: cells come out the same, whichever has read them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from atoll.model.guest import GUEST_SOURCE
from tests.kernels import test_node as node
from tests.kernels.node_presence import needs_node

pytestmark = [needs_node, pytest.mark.any_user]

# Programs of other people, where a machine has some.
_LIBRARIES = (Path("/usr/lib/node_modules"), Path("/usr/share/nodejs"))
_MOST_FILES = 300
_MOST_BYTES = 100_000

# Loads what makes scripts of cells twice, with one parser and with the other, and tells what they make of each program.
_HARNESS = r"""
const fs = require('fs');
const path = require('path');
const vm = require('vm');
const { internalBinding } = require('internal/test/binding');

const guest = process.argv.at(-1);
const acorn = { exports: {} };
const code = internalBinding('builtins').natives['internal/deps/acorn/acorn/dist/acorn'];
vm.compileFunction(code, ['exports', 'module'])(acorn.exports, acorn);

function transformBy(folders) {
  const loaded = new Map();
  const load = (name) => {
    if (name.startsWith('internal/')) return acorn.exports;
    const file = folders.map((each) => path.join(guest, each, name)).find(fs.existsSync);
    if (!loaded.has(file)) {
      const module = { exports: {} };
      loaded.set(file, module);
      const text = fs.readFileSync(file, 'utf8');
      vm.compileFunction(text, ['exports', 'require', 'module'])(module.exports, load, module);
    }
    return loaded.get(file).exports;
  };
  return load('./transform.js').transform;
}

const parsers = [transformBy(['node']), transformBy(['deno', 'node'])];
const taken = new Set(['URL', 'process', 'console', 'name', 'key', 'path']);

function outcome(transform, source) {
  try {
    const made = transform(source, taken, new Set(['URL', 'name']));
    return JSON.stringify(made, (_key, value) => (value instanceof Set ? [...value] : value));
  } catch (error) {
    return error instanceof Error && typeof error.pos === 'number' ? 'refused' : String(error.stack);
  }
}

const programs = JSON.parse(fs.readFileSync(0, 'utf8'));
const found = programs.map((source) => parsers.map((each) => outcome(each, source)));
process.stdout.write(JSON.stringify(found));
"""

PROGRAMS = [
    '\na = b / c / d; x = /re[/]x/g.test(y); z = a++ / 2; w = (a) / 2; v = [1] / 2; u = {} / 1',
    'if (a) /x/.test(b)',
    'a\n/b/g',
    'x = a ? /b/ : /c/',
    '`a${`b${c}`}d` ; tag`x${1}`',
    'for (let in {});',
    'for (let of of [1]);',
    'for (const x of y) z; for (a.b of c); for ([a,b] in c); for (var i = 0, j = 1 in {};;) {}',
    'for (var x = ("a" in b); ; ) break',
    'let async; async = 1; async (x); async\nfunction f() {}',
    'async x => await x; async (x, {y}, [z] = []) => { await y }',
    '(a, b = 1, ...c) => a; ({a, b: {c = 2}}) => c; a => ({}); a => {}',
    'const f = () => {}\n(foo)',
    'const f = a => a\n/foo/g',
    'class A { static async *gen() { yield* x; await y } get a() { return 1 } set a(v) {} static { await1() } #p = 1; has(o) { return #p in o } static x = 5; get; set; async; static; "str"() {} 5() {} [comp]() {} async\n foo() {} }',
    'class A extends (b, c) {} class B extends f(x).y {}',
    'x = class {}; y = class N extends M {}; z = function* () { yield; yield /re/; const q = yield a }',
    'label: for (;;) { continue label; break\nlabel }',
    'do x++; while (x < 5) y',
    'do { } while (0) foo()',
    'switch (a) { case 1: let b = 1; default: { } case /x/: }',
    'try {} catch { } finally {} ; try {} catch ({a, b}) {}',
    'var {a = 1, b: [c, , d], ...e} = f, g',
    '({a, b, c = 1} = d); [a.b, c[d], ...e] = f; ({ [x]: y.z } = w)',
    'a ??= b; a ||= c; a &&= d; a **= 2; a >>>= 1',
    'a?.b?.[c]?.(d)?.e; a ? .5 : 1; a?.5:1',
    'import("x").then(y); import.meta.url',
    'import a, * as b from "c"; import {d as e, "f g" as h, default as i} from "j" with {type: "json"}; import "k"',
    'export default class {}',
    'export default async () => {}',
    'export const [a, {b}] = c, d = 1; export async function e() {} export class F {}',
    'let x = await y, z = [await q, `${await r}`]; for await (const a of b) c',
    'function f() { return\n1 } var g = function () { return }',
    'if (a) b; else if (c) d\nelse e',
    'a\n++b\n--c',
    'a = b\n(c)',
    'let yield_ = 1; var yield = 2; yield + 1',
    'var let = 5; let + 1; let\nfoo',
    'let\nfoo2 = 1',
    'var await = 1; await + 1',
    'await\n/x/g',
    'const a = await /x/.exec(b)',
    '0x1F + 0b11 + 0o7 + 1_000n + .5e-3 + 5. + 5..toFixed() + 1.e3',
    '\'a\\\'b\\\nc\' + \\"d\\\\\\"\\" + `\\`\\${`',
    '\\u0061bc = 1; a\\u{62}c',
    'a /* x\n */ b',
    'x = y // c\n/* d */ z',
    'get = 1; set = 2; of = 3; static_ = 4; from = 5; as = 6',
    '({get a() {}, set a(v) {}, get: 1, set: 2, async: 3, async b() {}, *c() {}, async *d() {}, get() {}, set() {}, async() {}, "x": 1, 5: 2, [y]: 3, __proto__: null, get [z]() {}, get "q"() {}, new: 1, if: 2, class() {}})',
    '({get, set, async, of, let})',
    'x = {a: function () { var i; for (i in a) ; }, b: () => { if ("x" in y) ; }}',
    'for (const f = () => "a" in b; ;) break',
    'for (x = {a: "b" in c}; ;) break',
    'with (a) b',
    'using_ = 1; { using x = y; await using z = w; using\n(1) }',
    'debugger;;;',
    '"use strict"; let x = 1',
    '"a"; "use strict"',
    '#!/usr/bin/x\nlet a',
    'URL; let URL = 1; ({URL}); URL.URL; x.URL; { let URL; URL } function q(URL) { URL } URL: for(;;) break URL; ({URL: URL}); ({[URL]: 1}); class C { URL = URL; [URL]() {} URL() {} }',
    'name = 1; ({name = 2} = x); [name] = y; name++; for (name of z); for (name in z); (name) => name; function name2(a = name) {} try {} catch (name) { name }',
    'const k = 1; k = 2; ({k} = x); [k] = y; ({k = 3} = z); k++; { let k; k = 1 } (k) => { k = 2 }; function f() { var k; k = 3 } function g() { k = 4 } class k2 { k() { k = 1 } static { var k; k = 2 } } for (k of x); for (let k of x) k = 1; switch (1) { case 1: let k; k = 1 }',
    'let a = 1\nlet b = ;',
    'let one; let one',
    'let o; var o',
    'function o() {} let o',
    'var o; function o() {}',
    '{ var o } let o',
    'return 5',
    'function f() { await 1 }',
    'async function f() { await 1; for await (x of y); }',
    'yield 5',
    'let x = {',
    '`abc',
    '"abc',
    '/abc',
    'a b',
    'import a from "b"; import a from "c"',
    'let a = (b, c); let d = (e = 1, f)',
    '(async function () {})(); !function () {}(); void async function* () {}',
    'a = async function () {}',
    'x => y => z => { }, 5',
    'a ? b => c : d => e',
    'a ? (b) : c => d',
    'a ? (b, c) : d',
    'f(a => b, c)',
    '(a => b)(c); (() => {}).call()',
    '[...a, ...b]; f(...c); ({...d})',
    'if (1) function q() {}',
    'l: function q() {}',
    'a = b ? c : d ? e : f',
    'a instanceof b, a in b',
    'let {a} = b; let [c] = d\nlet {e} = f',
    'let x\nlet y = 1, z\n[1].map(x)',
    'export let q; export var r; export function s() {}',
    'throw a',
    'let f = async () => {}\nawait f()',
    'for await (const x of y) { let z = await x; }',
    'async () => { for await (x of y); }',
    'var a = 1, b = 2; await 0; for (var c in d); for (var {e} of f); if (1) var g = 1; else var h',
    'await 0; if (a) { b } else c',
    'await 0; try { a } catch { b } finally { c }',
    'await 0; { a; b }',
    'await 0; l: a',
    'let x = class { static y = await1 }; let z = y\n`t`',
    'a = function* () { const {x = yield} = yield* y; }',
    'const {[a+b]: c, ...d} = e, [f = 1, [g], ...[h]] = i',
    'function f({a, b = 2}, [c, d] = [], ...{length}) {}',
    'let i; i\n++\ni',
    'a = {}\n/1/g',
    'x = function () {} / 2',
    'if (a) {} /re/.exec(b)',
    'while (x) {} [1]',
    '() => {}\n[1]',
    'a => {} \n, 1',
    'let undefined_ = 1; const NaN_ = 1',
    "let s = 'a\u2028b'",
    'x\u2028y',
    '/[\\]/]/.test(a) / 2',
    '/(?<n>a)\\k<n>/u; /[[a]&&[b]]/v',
    'a = b\n/c/d',
    '({ async *[Symbol.iterator]() {} })',
    'class A { static async = 1; static get = 2; static static = 3; static() {} get static() {} async get() {} static async static() {} }',
    'class A { a\nb\n["c"]\nd = 1\n*e() {} }',
    'class A { a = () => { await_ }; b = function () { return 1 } }',
    'let a=1;;let b',
    'a=>{}\n/b/',
    'x = a\n++\ny',
    'enum_ = 1',
    'let await_ = async () => await (await x).y',
    'for (let [a, b] of c) d; for (let {e} in f); for (const g of h) ;',
    'for (var i = 0; i < 1; i++) var j = i',
    'import.meta',
    'import * as ns from "x"; ns.y = 1',
    'import d, {n} from "x"; d = 1; n++',
    '(let)',
    'let [a] = b, c; let: 1',
    'new a.b(c).d; new a; new new X()(); new (foo())(); function f() { new.target } new (class {})',
    'export {a as b, c as d} from "d"; export * from "e"; export * as f from "g"; export default async function () {}',
    'class B extends A { constructor() { super(); super.x; this.#p ??= 1 } #p; a() { return b.#p.if.class.new } }',
    'typeof a === void 0 ? -b : +c; delete a.b; !a in b; (-a) ** 2',
]  # fmt: skip
CELLS = [
    *(code for cells, _ in (*node.VALUES.values(), *node.STATE.values()) for code in cells if len(code) < 10_000),
    *(case[0] for case in (*node.ERRORS.values(), *node.PRINTED.values())),
    *(code for code, _ in node.SHOWN.values()),
    *(code for code, _ in node.LOADED.values()),
    *node.ENDLESS.values(),
    *node.DAMAGE,
]  # fmt: skip


def outcomes(programs: list[str]) -> list[list[str]]:
    """Return what both parsers make of programs, Node's first."""
    result = subprocess.run(
        ["node", "--expose-internals", "--no-warnings", "-e", _HARNESS, "--", str(GUEST_SOURCE)],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[list[str]] = json.loads(result.stdout)
    return found


@cache
def outcomes_of_all() -> Mapping[str, list[str]]:
    programs = [*PROGRAMS, *CELLS]
    return dict(zip(programs, outcomes(programs), strict=True))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_understood_as_by_another_parser(program: str) -> None:
    other, ours = outcomes_of_all()[program]
    assert ours == other


def test_cells_are_understood_as_by_another_parser() -> None:
    found = outcomes_of_all()
    assert [each for each in CELLS if len(set(found[each])) > 1] == []


def test_libraries_are_understood_as_by_another_parser() -> None:
    files = (
        path
        for library in _LIBRARIES
        for path in sorted(library.rglob("*.js"))
        if path.is_file() and path.stat().st_size < _MOST_BYTES
    )
    programs = {str(path): path.read_text() for path in islice(files, _MOST_FILES)}
    if not programs:
        pytest.skip("no libraries of JavaScript are installed here")
    found = zip(programs, outcomes([*programs.values()]), strict=True)
    assert [path for path, (other, ours) in found if ours != other] == []
