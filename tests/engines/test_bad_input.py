"""Whatever is asked wrongly is refused by a typed error that names the thing, the limit and the way
out; nothing is started for it and nothing is left."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atoll.engines.contract import Engine, Sandbox
from atoll.errors import AtollError, Conflict, InvalidRequest, LimitExceeded, NotFound, Unsupported
from atoll.model.ids import new_sandbox_id
from atoll.model.limits import Limits, ResolvedLimits
from atoll.model.process import Command, TerminalSize
from atoll.model.sandbox import Mount, SandboxSpec
from atoll.node.commands import Commands
from tests import host_state

pytestmark = pytest.mark.parametrize("engine", ["namespaces"], indirect=True, scope="session")

MIB = 1 << 20
# A message is for people to read; what was sent may be long.
MOST_MESSAGE = 600

# In tests of wrong types everything is passed as anything.
make_spec: Any = SandboxSpec
make_limits: Any = Limits
make_command: Any = Command
make_mount: Any = Mount
make_terminal: Any = TerminalSize


@contextmanager
def refused(*words: str, by: type[AtollError] | tuple[type[AtollError], ...]) -> Iterator[None]:
    """See that a typed error is raised whose message has the words, and that nothing is left."""
    before = host_state.look(Path("/nonexistent"))
    with pytest.raises(by) as caught:
        yield
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert 10 < len(message) < MOST_MESSAGE, message

    def growth() -> object:
        return host_state.look(Path("/nonexistent")).growth(before)

    # A watchdog may be looking into /proc at this moment, too.
    assert host_state.eventually(lambda: not growth(), 60), growth()


@pytest.fixture(autouse=True)
async def opened(engine: Engine) -> None:
    """An engine that has its parts already, so that nothing new may appear."""
    await (await engine.create(SandboxSpec())).destroy()


# --- creating ---------------------------------------------------------------------------------

TEMPLATES = [
    "no-such",
    "",
    "../base",
    "/etc",
    "base\0",
    "base\n",
    "x" * 10_000,
    7,
    None,
    b"base",
    ["base"],
]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: repr(each)[:20])
async def test_an_unknown_template(engine: Engine, template: object) -> None:
    with refused("template", "base", by=InvalidRequest):
        await engine.create(make_spec(template=template))


NAMES = [field.name for field in dataclasses.fields(ResolvedLimits)]
VALUES = [-1, 0, 1 << 60, math.nan, math.inf, True, "256m", "", b"1", [1], {}]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("name", NAMES)
async def test_an_impossible_limit(engine: Engine, name: str, value: object) -> None:
    with refused(name, "has to", by=InvalidRequest):
        await engine.create(SandboxSpec(limits=make_limits(**{name: value})))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cpus"])
async def test_half_a_limit(engine: Engine, name: str) -> None:
    with refused(name, "a whole number", by=InvalidRequest):
        await engine.create(SandboxSpec(limits=make_limits(**{name: 1e8 + 0.5})))


@pytest.mark.parametrize("value", ["Strict", "", None, 1, True, "best effort"], ids=repr)
async def test_an_unknown_enforcement(engine: Engine, value: object) -> None:
    with refused("enforcement", "strict", "best_effort", by=InvalidRequest):
        await engine.create(SandboxSpec(limits=make_limits(enforcement=value)))


TREES = ["workspace_bytes", "tmp_bytes", "home_bytes", "shm_bytes"]


@pytest.mark.parametrize("name", TREES)
async def test_a_tree_larger_than_the_memory_it_is_in(engine: Engine, name: str) -> None:
    wanted: dict[str, Any] = {"memory_bytes": 64 * MIB, name: 64 * MIB}
    with refused("64 MiB", "raise memory_bytes or lower", by=InvalidRequest):
        await engine.create(SandboxSpec(limits=Limits(**wanted, enforcement="best_effort")))


@pytest.mark.parametrize("names", list(itertools.combinations(TREES, 2)), ids="-".join)
async def test_trees_that_are_too_large_together(engine: Engine, names: tuple[str, str]) -> None:
    wanted: dict[str, Any] = {name: 40 * MIB for name in names}
    limits = Limits(**wanted, memory_bytes=64 * MIB, enforcement="best_effort")
    with refused("together", "memory limit of 64 MiB", by=InvalidRequest):
        await engine.create(SandboxSpec(limits=limits))


@pytest.mark.parametrize("limits", [None, {}, {"memory_bytes": 1}, "small", 5], ids=repr)
async def test_limits_of_another_kind(engine: Engine, limits: object) -> None:
    with refused("limits", "Limits", by=InvalidRequest):
        await engine.create(make_spec(limits=limits))


IDS = [
    "",
    "x",
    "../../../etc",
    "A" * 26,
    "a" * 25 + "/",
    "a" * 27,
    "a" * 25 + "\0",
    5,
    None,
    b"a" * 26,
]


@pytest.mark.parametrize("sandbox_id", IDS, ids=repr)
async def test_an_id_that_is_none(engine: Engine, sandbox_id: object) -> None:
    with refused("id", "26 characters", "leave it out", by=InvalidRequest):
        await engine.create(make_spec(id=sandbox_id))


async def test_an_id_that_is_taken(engine: Engine) -> None:
    sandbox = await engine.create(SandboxSpec())
    with refused(sandbox.id, "exists already", "leave the id out", by=Conflict):
        await engine.create(SandboxSpec(id=sandbox.id))
    assert (await Commands(sandbox).run("echo alive")).stdout == b"alive\n"
    await sandbox.destroy()
    again = await engine.create(SandboxSpec(id=sandbox.id))
    await again.destroy()


HOSTNAMES = [
    "",
    "Upper",
    "a_b",
    "-a",
    "a-",
    "a.b",
    "a" * 64,
    "ä",
    "a\n",
    "a\0",
    " a",
    5,
    None,
    b"a",
]


@pytest.mark.parametrize("hostname", HOSTNAMES, ids=lambda each: repr(each)[:20])
async def test_a_hostname_that_is_none(engine: Engine, hostname: object) -> None:
    with refused("hostname", "1 to 63 characters", by=InvalidRequest):
        await engine.create(make_spec(hostname=hostname))


ENVIRONMENTS: list[object] = [
    {"": "x"},
    {"A=B": "x"},
    {"A\0": "x"},
    {"A": "x\0"},
    {"A": 1},
    {"A": None},
    {"A": b"x"},
    {1: "x"},
    {None: "x"},
    {"A": "x" * 200_000},
    {f"A{number}": "x" * 1000 for number in range(2000)},
    {"A": "\ud800"},
    None,
    "A=B",
    [("A", "B")],
    5,
]


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=lambda each: repr(each)[:20])
async def test_an_environment_that_cannot_be(engine: Engine, env: object) -> None:
    with refused("environment", by=InvalidRequest):
        await engine.create(make_spec(env=env))
    with refused("environment", by=InvalidRequest):
        make_command(("true",), env=env)


async def test_environments_that_are_too_large_together(engine: Engine) -> None:
    half = {f"A{number}": "x" * 1000 for number in range(900)}
    sandbox = await engine.create(SandboxSpec(env=half))
    other = {f"B{number}": "x" * 1000 for number in range(900)}
    with refused("environment", "the most is", by=InvalidRequest):
        await sandbox.start(Command(("true",), env=other))
    await sandbox.destroy()


SOURCES = [
    "/etc",
    "/",
    "",
    "relative",
    "/nowhere",
    "/tmp/../etc",
    "/proc/self/root",
    "/etc\0",
    5,
    None,
]


@pytest.mark.parametrize("source", SOURCES, ids=repr)
async def test_a_mount_that_nobody_allowed(engine: Engine, source: object) -> None:
    with refused("mount", by=InvalidRequest):
        await engine.create(SandboxSpec(mounts=[make_mount(source, "/mnt/x")]))


@pytest.mark.parametrize(
    "mounts", [None, "/etc", ["/etc"], [None], 5, {"/etc": "/mnt/x"}], ids=repr
)
async def test_mounts_of_another_kind(engine: Engine, mounts: object) -> None:
    with refused("mount", by=InvalidRequest):
        await engine.create(make_spec(mounts=mounts))


@pytest.mark.parametrize("target", ["/mnt/a", "/mnt/a/b", "/mnt/a/b/c", "/mnt"])
async def test_a_mount_within_another(engine: Engine, target: str) -> None:
    targets = ("/mnt/a-c", "/mnt/a", target, "/mnt/a.d")
    with refused("lies within another", by=InvalidRequest):
        await engine.create(make_spec(mounts=[Mount("/srv", each) for each in targets]))


async def test_more_mounts_than_there_may_be(engine: Engine) -> None:
    mounts = [Mount("/etc", f"/mnt/{number}") for number in range(100)]
    with refused("100 mounts", "the most is", by=InvalidRequest):
        await engine.create(SandboxSpec(mounts=mounts))


@pytest.mark.parametrize("spec", [None, "base", {}, 5, SandboxSpec], ids=repr)
async def test_a_spec_of_another_kind(engine: Engine, spec: Any) -> None:
    with refused("SandboxSpec", by=InvalidRequest):
        await engine.create(spec)


@pytest.mark.parametrize("sandbox_id", ["", "../x", None, 5, new_sandbox_id()], ids=repr)
async def test_adopting_what_is_not_there(engine: Engine, sandbox_id: Any) -> None:
    with refused("sandbox", by=(InvalidRequest, NotFound, Unsupported)):
        await engine.adopt(sandbox_id)


# --- starting ---------------------------------------------------------------------------------

ARGUMENT_LISTS: list[object] = [
    (),
    ("",),
    "ls",
    b"ls",
    None,
    5,
    {"ls": 1},
    {"ls"},
    (None,),
    (5,),
    (b"ls",),
    ("ls", None),
    ("ls", "a\0b"),
    ("ls", "\ud800"),
    ("ls", "x" * (128 * 1024)),
    ("ls", *["x" * 10_000] * 200),
    ("ls", *["x"] * 400_000),
]


@pytest.mark.parametrize("argv", ARGUMENT_LISTS, ids=lambda each: repr(each)[:20])
async def test_arguments_that_no_program_can_get(sandbox: Sandbox, argv: object) -> None:
    with refused(by=InvalidRequest):
        await sandbox.start(make_command(argv))


async def test_as_many_arguments_as_a_command_may_have(sandbox: Sandbox) -> None:
    await sandbox.workspace.write("count", b"#!/bin/sh\necho $#\n", mode=0o755)
    result = await Commands(sandbox).run(["./count", *["x"] * 100_000])
    assert result.stdout == b"100000\n", result
    result = await Commands(sandbox).run(
        ["./count", "x" * (128 * 1024 - 1), "y" * (128 * 1024 - 1)]
    )
    assert result.stdout == b"2\n", result


DIRECTORIES: list[tuple[object, str]] = [
    ("nowhere", "make it first"),
    ("a file", "cannot be entered"),
    ("/nowhere", "make it first"),
    ("/proc/1/root", "cannot be entered"),
    ("x" * 300, "cannot be entered"),
    ("x/" * 5000, "cannot be entered"),
    ("a\0b", "NUL"),
    (None, "text"),
    (5, "text"),
    (b".", "text"),
]


@pytest.mark.parametrize(("cwd", "word"), DIRECTORIES, ids=lambda each: repr(each)[:20])
async def test_a_working_directory_that_cannot_be(sandbox: Sandbox, cwd: object, word: str) -> None:
    await sandbox.workspace.write("a file", b"")
    with refused("directory", word, by=InvalidRequest):
        await sandbox.start(make_command(("true",), cwd=cwd))


@pytest.mark.parametrize("user", ["root", "nobody", "", "0", "sandbox\0", 0, b"sandbox"], ids=repr)
async def test_another_user(sandbox: Sandbox, user: object) -> None:
    with refused("user", by=(Unsupported, InvalidRequest)):
        await sandbox.start(make_command(("true",), user=user))


@pytest.mark.parametrize("size", [(24, 80), "24x80", 80, True, {"rows": 1}], ids=repr)
async def test_a_terminal_of_another_kind(sandbox: Sandbox, size: object) -> None:
    with refused("terminal", "TerminalSize", by=InvalidRequest):
        await sandbox.start(make_command(("true",), terminal=size))


@pytest.mark.parametrize("rows", [0, -1, 4097, "24", None, 1.5, True], ids=repr)
async def test_a_terminal_without_a_size(engine: Engine, rows: object) -> None:
    with refused("terminal rows", "between 1 and 4096", by=InvalidRequest):
        make_terminal(rows=rows)
    with refused("terminal columns", "between 1 and 4096", by=InvalidRequest):
        make_terminal(columns=rows)


@pytest.mark.parametrize("command", [None, "ls", ("ls",), 5, Command], ids=repr)
async def test_a_command_of_another_kind(sandbox: Sandbox, command: Any) -> None:
    with refused("Command", by=InvalidRequest):
        await sandbox.start(command)


RUNS: list[dict[str, object]] = [
    {"timeout": -1},
    {"timeout": math.nan},
    {"timeout": "5"},
    {"timeout": True},
    {"max_output_bytes": -1},
    {"max_output_bytes": 1.5},
    {"max_output_bytes": "1m"},
    {"stdin": 5},
    {"stdin": ["a"]},
    {"cwd": None},
    {"user": 5},
    {"env": "A=B"},
]


@pytest.mark.parametrize("options", RUNS, ids=repr)
async def test_a_run_with_impossible_options(sandbox: Sandbox, options: dict[str, Any]) -> None:
    with refused(by=(InvalidRequest, Unsupported)):
        await Commands(sandbox).run("true", **options)


# --- processes --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -1, 65, 1 << 40, True, "TERM", None, 9.0], ids=repr)
async def test_a_signal_that_is_none(sandbox: Sandbox, number: Any) -> None:
    process = await sandbox.start(Command(("sleep", "1000")))
    with refused("signal", by=InvalidRequest):
        await process.signal(number)
    await process.close()


@pytest.mark.parametrize("data", ["text", None, 5, ["a"]], ids=repr)
async def test_input_that_is_not_bytes(sandbox: Sandbox, data: Any) -> None:
    for terminal in (None, TerminalSize()):
        process = await sandbox.start(Command(("cat",), stdin=True, terminal=terminal))
        with refused("bytes", by=InvalidRequest):
            await process.write(data)
        await process.close()


async def test_input_for_a_process_that_takes_none(sandbox: Sandbox) -> None:
    process = await sandbox.start(Command(("sleep", "1000")))
    with refused("stdin=True", by=InvalidRequest):
        await process.write(b"x")
    with refused("terminal", by=InvalidRequest):
        await process.resize(TerminalSize())
    await process.close()


@pytest.mark.parametrize("size", [None, (24, 80), "24x80"], ids=repr)
async def test_resizing_to_another_kind_of_size(sandbox: Sandbox, size: Any) -> None:
    process = await sandbox.start(Command(("cat",), stdin=True, terminal=TerminalSize()))
    with refused("TerminalSize", by=InvalidRequest):
        await process.resize(size)
    await process.close()


# --- files ------------------------------------------------------------------------------------

PATHS: list[Any] = [
    "..",
    "../x",
    "a/../../b",
    "a/..",
    "/",
    "/etc/passwd",
    "/workspacex",
    "/workspace/../etc",
    "//workspace/x",
    "a//b",
    "a\0b",
    "x" * 256,
    "x/" * 3000 + "x",
    "\ud800",
    None,
    5,
    b"x",
    ["x"],
    Path("x"),
]


@pytest.mark.parametrize("path", PATHS, ids=lambda each: repr(each)[:20])
async def test_a_path_that_leads_out_or_nowhere(sandbox: Sandbox, path: Any) -> None:
    workspace = sandbox.workspace
    await workspace.write("here", b"here")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: workspace.stat(path),
        lambda: workspace.list(path),
        lambda: anext(workspace.read(path)),
        lambda: workspace.write(path, b"x"),
        lambda: workspace.write(path, no_pieces()),
        lambda: workspace.make_dir(path),
        lambda: workspace.remove(path, recursive=True),
        lambda: workspace.rename(path, "there"),
        lambda: workspace.rename("here", path),
    ]
    for call in calls:
        with refused("path", by=InvalidRequest):
            await call()
    assert [info.path for info in await workspace.list(".")] == ["here"]


async def no_pieces() -> AsyncIterator[bytes]:
    nothing: list[bytes] = []
    for piece in nothing:
        yield piece


async def wrong_pieces() -> AsyncIterator[Any]:
    yield b"right"
    yield "wrong"


async def test_the_workspace_itself_stays(sandbox: Sandbox) -> None:
    for path in (".", "", "/workspace", "/workspace/", "./."):
        with refused("workspace itself", by=InvalidRequest):
            await sandbox.workspace.remove(path, recursive=True)
        with refused("workspace itself", by=InvalidRequest):
            await sandbox.workspace.write(path, b"")
        with refused("workspace itself", by=InvalidRequest):
            await sandbox.workspace.rename(path, "x")


@pytest.mark.parametrize("data", ["text", None, 5, [b"x"], wrong_pieces], ids=repr)
async def test_content_that_is_not_bytes(sandbox: Sandbox, data: Any) -> None:
    with refused("bytes", by=InvalidRequest):
        await sandbox.workspace.write("file", data() if callable(data) else data)
    with pytest.raises(NotFound):
        await sandbox.workspace.stat("file")


PARTS: list[dict[str, object]] = [
    {"offset": -1},
    {"offset": "0"},
    {"offset": None},
    {"offset": 1.5},
    {"offset": 1 << 70},
    {"length": -1},
    {"length": "1"},
    {"length": 1.5},
]


@pytest.mark.parametrize("part", PARTS, ids=repr)
async def test_a_part_of_a_file_that_cannot_be(sandbox: Sandbox, part: dict[str, Any]) -> None:
    await sandbox.workspace.write("file", b"content")
    with refused(next(iter(part)), by=InvalidRequest):
        await anext(sandbox.workspace.read("file", **part))


@pytest.mark.parametrize("mode", [-1, 0o10000, 1 << 40, "644", None, 1.5], ids=repr)
async def test_a_mode_that_is_none(sandbox: Sandbox, mode: Any) -> None:
    for data in (b"", bytes(100_000)):
        with refused("mode", by=InvalidRequest):
            await sandbox.workspace.write("file", data, mode=mode)


@pytest.mark.parametrize("limit", [-1, "1", None, 1.5], ids=repr)
async def test_a_list_with_an_impossible_limit(sandbox: Sandbox, limit: Any) -> None:
    await sandbox.workspace.write("file", b"")
    with refused("limit", by=InvalidRequest):
        await sandbox.workspace.list(limit=limit)


async def test_more_entries_than_asked_for(sandbox: Sandbox) -> None:
    await Commands(sandbox).run("touch 1 2 3")
    await sandbox.workspace.stat("1")
    with refused("more than 2 entries", by=LimitExceeded):
        await sandbox.workspace.list(limit=2)


# --- ports ------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [0, -1, 65536, 1 << 40, True, "80", None, 80.0, b"80"], ids=repr)
async def test_a_port_that_is_none(sandbox: Sandbox, port: Any) -> None:
    with refused("port", "65535", by=InvalidRequest):
        await sandbox.connect(port)
    with refused("port", "65535", by=InvalidRequest):
        await sandbox.listen(port)


ADDRESSES = [
    "0.0.0.0",
    "10.0.0.1",
    "::1",
    "localhost",
    "",
    "127.0.0.1\0",
    "127.1",
    None,
    5,
    b"127.0.0.1",
]


@pytest.mark.parametrize("address", ADDRESSES, ids=repr)
async def test_an_address_outside(sandbox: Sandbox, address: Any) -> None:
    with refused("address", "loopback", by=InvalidRequest):
        await sandbox.listen(8000, address)


async def test_a_port_for_the_privileged(sandbox: Sandbox) -> None:
    with refused("port 80", "between 1024 and 65535", by=InvalidRequest):
        await sandbox.listen(80)
