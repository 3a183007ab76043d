"""A program that makes sandboxes which outlive it, to be killed: `lasting_host.py DATA_DIR LEASE_SECONDS WHAT [TOKEN]`.

It says in one line of JSON what it has made, then waits.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from atoll.engines.contract import Lasting, Sandbox
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.errors import NotFound
from atoll.model.ids import ProcessId, SandboxId
from atoll.model.process import Command, TerminalSize
from atoll.model.sandbox import SandboxSpec
from atoll.model.template import PYTHON_TEMPLATE
from atoll.node.kernels import Kernel
from atoll.node.templates import Templates

TEMPLATES = Path(tempfile.gettempdir(), f"atoll-test-{os.geteuid()}")
COUNTING = "i=0; while :; do i=$((i+1)); echo $i >> count; echo $i; sleep 0.01; done"
CELL = """
import os, time
print("printed", flush=True)
open("begun", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
open("done", "w").write(str(kept + 1))
"""

Made = dict[str, str]


def lasting_engine(data_dir: Path, lease_seconds: float = 60.0) -> NamespaceEngine:
    """Return an engine whose sandboxes outlive it."""
    return NamespaceEngine(
        NamespaceSettings(
            data_dir,
            trees={PYTHON_TEMPLATE: Templates(TEMPLATES).python},
            lasting=Lasting(data_dir / "keeper", lease_seconds),
        )
    )


def kernel_spec(sandbox_id: SandboxId) -> SandboxSpec:
    """Return what the sandbox with a kernel was made from."""
    return SandboxSpec(id=sandbox_id, template=PYTHON_TEMPLATE, kernel=True)


async def run_commands(engine: NamespaceEngine) -> Made:
    """Several kinds of commands in one sandbox."""
    sandbox = await engine.create(SandboxSpec())
    commands = {
        "counter": Command.shell(COUNTING),
        "cat": Command(("cat",), stdin=True),
        "terminal": Command(("sh",), terminal=TerminalSize()),
        "ending": Command.shell("while [ ! -e go ]; do sleep 0.01; done; echo over; exit 7"),
        "missing": Command(("no-such-program",)),
    }
    made = {name: (await sandbox.start(command)).id for name, command in commands.items()}
    daemon = Command.shell(
        "setsid sh -c 'while :; do echo . >> daemon; echo .; sleep 0.01; done' &"
    )
    process = await sandbox.start(daemon)
    await process.wait()
    await process.close()
    reading, writing = os.pipe()
    os.write(writing, b"on its way")
    sandbox.keep("relay", [reading, writing])
    return {"sandbox": sandbox.id, **made}


async def pause(engine: NamespaceEngine) -> Made:
    """A sandbox that is paused."""
    sandbox = await engine.create(SandboxSpec())
    process = await sandbox.start(Command.shell(COUNTING))
    await sandbox.pause()
    return {"sandbox": sandbox.id, "counter": process.id}


async def run_cell(engine: NamespaceEngine) -> Made:
    """Two kernels in a sandbox, the first in the middle of a cell."""
    sandbox = await engine.create(kernel_spec(SandboxSpec().id))
    kernel = await Kernel.open(sandbox)
    await kernel.run("kept = 41")
    second = await Kernel.open(sandbox)
    made = {"sandbox": sandbox.id, "kernel": kernel.process.id, "second": second.process.id}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kernel.run, CELL)
        await until_there(sandbox, "begun")
        print(json.dumps(made), flush=True)
    return made


async def churn(engine: NamespaceEngine) -> Made:
    """Make, use and destroy sandboxes for ever, once the engine is warm."""
    await (await engine.create(kernel_spec(SandboxSpec().id))).destroy()
    return await churn_cold(engine)


async def churn_cold(engine: NamespaceEngine) -> Made:
    """The same from the first moment on; each is told before it is made, as a node would note it."""
    while True:
        spec = kernel_spec(SandboxSpec().id)
        print(json.dumps({"sandbox": spec.id}), flush=True)
        sandbox = await engine.create(spec)
        process = await sandbox.start(Command(("sleep", sys.argv[4])), ProcessId(spec.id[::-1]))
        await sandbox.start(Command(("sh", "-c", f"setsid sleep {sys.argv[4]} &")))
        await process.close()
        await sandbox.destroy()


async def end_early(engine: NamespaceEngine) -> Made:
    """A command whose end was heard, and nothing done about it yet."""
    sandbox = await engine.create(SandboxSpec())
    process = await sandbox.start(Command.shell("echo last words; kill -USR1 $$"))
    await process.wait()
    return {"sandbox": sandbox.id, "ended": process.id}


async def until_there(sandbox: Sandbox, path: str) -> None:
    """Wait for a file."""
    while True:
        try:
            await sandbox.workspace.stat(path)
            return
        except NotFound:
            await anyio.sleep(0.01)


WHAT: dict[str, Callable[[NamespaceEngine], Awaitable[Made]]] = {
    each.__name__: each for each in (run_commands, pause, run_cell, end_early, churn, churn_cold)
}


async def main(data_dir: str, lease_seconds: str, what: str) -> None:
    made = await WHAT[what](lasting_engine(Path(data_dir), float(lease_seconds)))
    print(json.dumps(made), flush=True)
    await anyio.sleep_forever()


if __name__ == "__main__":
    data_dir, lease_seconds, what = sys.argv[1:4]
    anyio.run(main, data_dir, lease_seconds, what)
