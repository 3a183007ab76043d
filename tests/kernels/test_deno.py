"""Cells of Deno: what they share with those of Node, by the same tests, and what is their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll import Sandbox
from atoll.errors import Unsupported
from atoll.model.kernel import CellStatus
from atoll.node.templates import Templates
from tests.kernels import test_node as node
from tests.kernels.deno_presence import needs_deno

pytestmark = needs_deno


@pytest.fixture(scope="module")
def sandbox(engine: str) -> Iterator[Sandbox]:
    """A sandbox with one Deno, which these tests leave as useful as they found it."""
    with Sandbox(template="deno", engine=engine) as sandbox:
        yield sandbox


@pytest.fixture
def fresh(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The same, for tests that spoil its kernel."""
    yield sandbox
    for kernel in sandbox.kernels.list():
        sandbox.kernels.close(kernel.id)


FILES = {
    **node.FILES,
    "typed.ts": "export interface Point { x: number }\nexport const point: Point = { x: 1 }",
    "sub/typed.mts": "import { point } from '../typed.ts'; export default point.x as number",
}


@pytest.fixture(scope="module")
def modules(engine: str) -> Iterator[Sandbox]:
    """A sandbox with some files to load."""
    with Sandbox(template="deno", engine=engine, files=FILES) as sandbox:
        yield sandbox


# --- what is the same --------------------------------------------------------------------------------------------------

# Whatever these use is found here by its name: the sandboxes above.
test_a_cell_shows = node.test_a_cell_shows
test_a_session_keeps = node.test_a_session_keeps
test_a_cell_displays = node.test_a_cell_displays
test_a_cell_loads = node.test_a_cell_loads
test_a_cell_ends_at_its_limit_and_leaves_state = node.test_a_cell_ends_at_its_limit_and_leaves_state
test_a_storm_of_processes_ends_at_its_limit = node.test_a_storm_of_processes_ends_at_its_limit
test_a_kernel_outlives_what_cells_break = node.test_a_kernel_outlives_what_cells_break
test_what_a_failed_cell_was_to_replace_stays = node.test_what_a_failed_cell_was_to_replace_stays
test_a_stack_that_a_cell_reads_has_nothing_of_the_kernel = (
    node.test_a_stack_that_a_cell_reads_has_nothing_of_the_kernel
)
test_what_is_printed_much_later_comes_with_a_later_cell = (
    node.test_what_is_printed_much_later_comes_with_a_later_cell
)
test_an_error_between_cells_is_told_and_ends_nothing = (
    node.test_an_error_between_cells_is_told_and_ends_nothing
)
test_a_listener_of_the_cells_gets_what_nobody_catches = (
    node.test_a_listener_of_the_cells_gets_what_nobody_catches
)
test_ten_megabytes_of_output_end_well = node.test_ten_megabytes_of_output_end_well
test_a_value_of_ten_megabytes_is_cut_with_a_note = (
    node.test_a_value_of_ten_megabytes_is_cut_with_a_note
)
test_displays_are_where_they_belong_and_can_be_replaced_and_cleared = (
    node.test_displays_are_where_they_belong_and_can_be_replaced_and_cleared
)
test_an_image_that_is_none_is_refused_with_the_way_out = (
    node.test_an_image_that_is_none_is_refused_with_the_way_out
)
test_a_cell_can_ask = node.test_a_cell_can_ask
test_a_cell_that_asks_nobody_is_told_so = node.test_a_cell_that_asks_nobody_is_told_so
test_names_are_completed_without_running_anything = (
    node.test_names_are_completed_without_running_anything
)
test_a_name_is_explained = node.test_a_name_is_explained
test_an_interrupt_ends_a_cell_and_says_so = node.test_an_interrupt_ends_a_cell_and_says_so
test_what_an_interrupted_cell_slept_for_does_not_come = (
    node.test_what_an_interrupted_cell_slept_for_does_not_come
)
test_a_restart_gives_a_new_kernel = node.test_a_restart_gives_a_new_kernel
test_programs_have_no_part_in_the_channel = node.test_programs_have_no_part_in_the_channel


# --- what is told in other words ---------------------------------------------------------------------------------------

_TIMER = "    at Timeout.<anonymous> (<cell N>:1:26)"
ERRORS = {
    **node.ERRORS,
    "in a callback": (*node.ERRORS["in a callback"][:3], _TIMER),
    "while it waits": (*node.ERRORS["while it waits"][:3], _TIMER),
    "Deno.exit": ("Deno.exit(3)", "ProcessExit", "Deno.exit(3) ended this cell; its kernel lives on",
                  "    at <cell N>:1:6"),
    "the end of a window": ("close()", "ProcessExit", "close() ended this cell; its kernel lives on",
                            "    at <cell N>:1:1"),
    "of Deno's own": ("Deno.readTextFileSync('nowhere')", "NotFound",
                      "No such file or directory (os error 2): readfile 'nowhere'", "    at <cell N>:1:6"),
    "in TypeScript": ("type T = string\nconst t: T = null!.x", "TypeError",
                      "Cannot read properties of null (reading 'x')", "<cell N>:2"),
    "twice in TypeScript": ("let one: number = 1; let one = 2", "SyntaxError",
                            "Identifier 'one' has already been declared", "<cell N>:1"),
    "a constant without a value": ("const none", "SyntaxError", "Missing initializer in const declaration",
                                   "<cell N>:1"),
}  # fmt: skip


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_tells(what: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "ERRORS", ERRORS)
    node.test_an_error_tells(what, sandbox)


# Deno does not tell whether a file is being read, so nobody waits for that.
PRINTED = {what: case for what, case in node.PRINTED.items() if what != "a file that is read"} | {
    "by Deno's own means": ("Deno.stdout.writeSync(new TextEncoder().encode('raw')); 0", "raw", ""),
    "errors by Deno's own means": ("Deno.stderr.writeSync(new TextEncoder().encode('raw')); 0", "", "raw"),
    "what a program prints": ("new Deno.Command('echo', { args: ['x'], stdout: 'inherit' }).outputSync(); 0", "x\n", ""),
}  # fmt: skip


@pytest.mark.parametrize("what", PRINTED)
def test_a_cell_prints(what: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "PRINTED", PRINTED)
    node.test_a_cell_prints(what, sandbox)


# --- what is Deno's own ------------------------------------------------------------------------------------------------

OWN: dict[str, tuple[list[str], str]] = {
    "types": (["interface P { n: number }\nconst p: P = { n: 5 as number }", "p.n"], "5"),
    "an enum": (["enum Color { Red, Green = 'g' }", "[Color.Red, Color.Green]"], "[ 0, 'g' ]"),
    "generics": (["function first<T>(all: T[]): T | undefined { return all[0] }", "first<number>([7])"], "7"),
    "parameters that are fields": (["class A { constructor(private n: number) {} get() { return this.n } }",
                                    "new A(3).get()"], "3"),
    "satisfies and as const": (["const kinds = ['a'] as const satisfies readonly string[]", "kinds"], "[ 'a' ]"),
    "an overload": (["function f(a: string): string\nfunction f(a: any) { return a }", "f('x')"], "'x'"),
    "types, and a wait": (["const later: Promise<number> = Promise.resolve(1); const n: number = await later", "n"], "1"),
    "types declared again": (["type T = number; const t: T = 1", "type T = string; const t: T = 'x'", "t"], "'x'"),
    "a namespace": (["namespace N { export const inner = 4 }", "N.inner"], "4"),
    "a declaration alone": (["declare const nothing: number; typeof nothing"], "'undefined'"),
    "Deno itself": (["Deno.build.os"], "'linux'"),
    "files": (["await Deno.writeTextFile('made', 'by Deno'); Deno.readTextFileSync('made')"], "'by Deno'"),
    "a program": (["new TextDecoder().decode((await new Deno.Command('echo', { args: ['x'] }).output()).stdout)"], "'x\\n'"),
    "a server": (["const server = Deno.serve({ port: 0, onListen() {} }, () => new Response('served'))",
                  "const said = await (await fetch(`http://127.0.0.1:${server.addr.port}`)).text()",
                  "await server.shutdown(); said"], "'served'"),
    "permissions": (["(await Deno.permissions.query({ name: 'net' })).state"], "'granted'"),
    "a module of Node's by its name alone": (["import fs from 'fs'; typeof fs.readFileSync"], "'function'"),
    "the web's own": (["new URLPattern({ pathname: '/:id' }).exec({ pathname: '/7' })?.pathname.groups.id"], "'7'"),
    "a database": (["import { DatabaseSync } from 'node:sqlite'; new DatabaseSync(':memory:').prepare('select 6 * 7 as n').get().n"],
                   "42"),
    "a worker": (["const worker = new Worker('data:text/javascript,postMessage(1)', { type: 'module' }); await new Promise((done) => { worker.onmessage = (event) => done(event.data) })"],
                 "1"),
    "a block that disposes": (["const gone = []; { using file = { [Symbol.dispose]() { gone.push('file') } } }", "gone"],
                              "[ 'file' ]"),
}  # fmt: skip


@pytest.mark.parametrize("what", OWN)
def test_a_cell_of_deno_has(what: str, sandbox: Sandbox) -> None:
    cells, text = OWN[what]
    cell = node.run(sandbox, *cells)
    assert cell.status is CellStatus.OK, cell.error
    assert cell.text == text


LOADED = {
    "TypeScript": ("import { point } from './typed.ts'; point.x", "1"),
    "types alone": ("import { type Point, point } from './typed.ts'; const p: Point = point; p.x", "1"),
    "TypeScript of TypeScript": ("(await import('./sub/typed.mts')).default", "1"),
    "a data URL": ("(await import('data:text/javascript,export default 5')).default", "5"),
}  # fmt: skip


@pytest.mark.parametrize("what", LOADED)
def test_a_cell_of_deno_loads(what: str, modules: Sandbox) -> None:
    code, text = LOADED[what]
    cell = modules.run_code(code)
    assert cell.status is CellStatus.OK, cell.error
    assert cell.text == text


def test_a_cell_loads_from_where_the_kernel_is(modules: Sandbox) -> None:
    kernel = modules.kernels.open("deno", cwd="/workspace/sub", envs={"GIVEN": "yes"})
    code = "[require('./here.js'), (await import('./typed.mts')).default, Deno.env.get('GIVEN')]"
    assert modules.run_code(code, kernel=kernel.id).text == "[ 'sub', 1, 'yes' ]"
    modules.run_code("Deno.chdir('..')", kernel=kernel.id)
    code = "[require('./plain').name, (await import('./typed.ts')).point.x]"
    assert modules.run_code(code, kernel=kernel.id).text == "[ 'plain', 1 ]"
    modules.kernels.close(kernel.id)


@pytest.mark.parametrize(
    "name", ["npm:left-pad@1.3.0", "jsr:@std/path@1.0.0", "https://x.invalid/a.ts"]
)
def test_what_cannot_be_fetched_is_an_error_of_the_cell(name: str, sandbox: Sandbox) -> None:
    cell = sandbox.run_code(f"await import('{name}')")
    assert cell.status is CellStatus.ERROR
    assert cell.error is not None
    assert cell.error.name == "TypeError"
    assert sandbox.run_code("'alive'").text == "'alive'"


def test_an_interrupt_between_cells_harms_nothing(sandbox: Sandbox) -> None:
    node.run(sandbox, "let unharmed = 1")
    for _ in range(3):
        sandbox.commands.run("pkill -INT -x deno")
        assert sandbox.run_code("unharmed").text == "1"


def test_a_second_interrupt_is_heeded_like_the_first(sandbox: Sandbox, patient: None) -> None:
    node.run(sandbox, "let kept = 42")
    for code in ("for (;;);", "setTimeout(() => { for (;;); }, 1); 0", "for (;;) await null") * 2:
        assert sandbox.run_code(code, timeout=0.3).status is CellStatus.TIMED_OUT
    assert sandbox.run_code("kept").text == "42"


def test_a_loop_in_a_tick_costs_the_kernel_and_that_is_told(fresh: Sandbox) -> None:
    cell = fresh.run_code("process.nextTick(() => { for (;;); }); 0", timeout=0.5)
    assert cell.status is CellStatus.DIED
    assert cell.death
    assert fresh.run_code("'new'").text == "'new'"


# What ends a kernel, and the beginning of what is told of it.
DEATHS = {
    "Deno.kill(Deno.pid, 'SIGKILL'); for (;;);": "the kernel was ended by SIGKILL",
    "process.abort()": "the kernel was ended by SIGABRT",
}


@pytest.mark.parametrize("code", DEATHS)
def test_a_death_is_told_and_the_next_cell_has_a_new_kernel(code: str, fresh: Sandbox) -> None:
    node.run(fresh, "let gone = 1; Deno.writeTextFileSync('stays', 'here')")
    cell = fresh.run_code(code)
    assert cell.status is CellStatus.DIED
    assert cell.death.startswith(DEATHS[code])
    found = fresh.run_code("[typeof gone, Deno.readTextFileSync('stays')]")
    assert found.text == "[ 'undefined', 'here' ]"


# --- where kernels are -------------------------------------------------------------------------------------------------


def test_a_deno_sandbox_speaks_it_without_being_asked(sandbox: Sandbox) -> None:
    assert sandbox.run_code("typeof Deno").text == "'object'"
    assert [each.language for each in sandbox.kernels.list()] == ["deno"]


def test_programs_run_with_deno(sandbox: Sandbox) -> None:
    sandbox.files.write("program.ts", "const n: number = 6 * 7; console.log(n, Deno.args)")
    result = sandbox.commands.run(["deno", "run", "program.ts", "x"])
    assert (result.exit_code, result.stdout) == (0, b'42 [ "x" ]\n')


def test_kernels_of_one_sandbox_are_apart_and_side_by_side(sandbox: Sandbox) -> None:
    other = sandbox.kernels.open("deno")
    node.run(sandbox, "var mine = 1")
    assert sandbox.run_code("typeof mine", kernel=other.id).text == "'undefined'"
    node.check_side_by_side(sandbox, other.id)
    sandbox.kernels.close(other.id)


def test_a_pool_has_its_deno_running(engine: str) -> None:
    Sandbox.warm(1, template="deno", engine=engine)
    try:
        with Sandbox(template="deno", engine=engine) as warm:
            (kernel,) = warm.kernels.list()
            assert kernel.language == "deno"
            cell = warm.run_code("const first = [1]; first")
            assert (cell.text, cell.execution_count) == ("[ 1 ]", 1)
            assert warm.run_code("Object.keys(globalThis).includes('each') || _[0]").text == "1"
    finally:
        Sandbox.warm(0, template="deno", engine=engine)


def test_a_machine_without_deno_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="pip install deno, or: npm install -g deno"):
        Templates(tmp_path).deno(path=str(tmp_path))


def test_the_program_is_found_behind_the_script_that_npm_installs(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "node_modules" / "deno"
    program = package.parent / "@deno" / "linux-x64-glibc" / "deno"
    for folder in (package, program.parent, tmp_path / "bin"):
        folder.mkdir(parents=True)
    (package / "bin.cjs").write_text("#!/usr/bin/env node\n")
    (package / "bin.cjs").chmod(0o755)
    (tmp_path / "bin" / "deno").symlink_to(package / "bin.cjs")
    program.write_bytes(b"\x7fELF, or so it seems")
    tree = Templates(tmp_path / "data").deno(path=str(tmp_path / "bin"))
    assert (tree.path / "bin" / "deno").read_bytes() == program.read_bytes()
    assert (tree.path / "bin" / "deno").stat().st_mode & 0o777 == 0o755
