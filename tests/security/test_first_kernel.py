"""The kernel that is born with its sandbox has init for a supervisor; those that join later have one of their own.

Whoever watches over it, its end is the end of all that it started and of nobody else.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import pytest

from atoll.engines.contract import Sandbox
from atoll.engines.namespaces.engine import NamespaceEngine
from atoll.errors import Conflict
from atoll.model.kernel import CellStatus
from atoll.model.process import Command, EndReason
from atoll.node.commands import Commands
from atoll.node.kernels import Kernel
from tests.campaigns import Campaign
from tests.host_state import eventually, new_token, running_with
from tests.security.entries import spec_for

# Away from its parent, its session and its group.
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setpgid(0, 0)
        os.execvp('sleep', ['sleep', '{token}'])
    os._exit(0)
os.wait()
"""
BOMB = """
import os, subprocess, sys
subprocess.Popen(['sleep', '{token}'])
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError:
        pass
"""
CHASE = """
import os, subprocess
subprocess.Popen(['sleep', '{token}'])
if os.fork() == 0:
    while True:
        if os.fork(): os._exit(0)
        os.setsid()
"""


@pytest.fixture
async def sandbox(engine: NamespaceEngine) -> AsyncIterator[Sandbox]:
    """A sandbox with a kernel from birth on."""
    sandbox = await engine.create(spec_for("first cell"))
    yield sandbox
    await sandbox.destroy()


async def works(sandbox: Sandbox) -> bool:
    """Whether the sandbox still does everything."""
    await sandbox.workspace.write("file", b"x")
    return (await Commands(sandbox).run("cat file", timeout=60)).stdout == b"x"


async def start(kernel: Kernel, code: str) -> str:
    """Run code that starts processes with a number on their command lines; return the number."""
    token = new_token()
    await kernel.run(code.format(token=token), timeout=60)
    assert eventually(lambda: bool(running_with(token)), 60)
    return token


@pytest.mark.parametrize("entry", ["cell", "first cell"])
async def test_the_end_of_a_kernel_is_that_of_its_daemons(
    engine: NamespaceEngine, entry: str
) -> None:
    sandbox = await engine.create(spec_for(entry))
    kernel = await Kernel.open(sandbox)
    token = await start(kernel, DAEMON)
    await kernel.close()
    assert not running_with(token)
    assert await works(sandbox)
    await sandbox.destroy()


@pytest.mark.parametrize("code", [BOMB, CHASE], ids=["bomb", "chase"])
@pytest.mark.parametrize("entry", ["cell", "first cell"])
async def test_no_kernel_outruns_its_end(engine: NamespaceEngine, entry: str, code: str) -> None:
    sandbox = await engine.create(spec_for(entry))
    kernel = await Kernel.open(sandbox)
    token = new_token()
    await kernel.run(code.format(token=token), timeout=0.5)
    await kernel.close()
    assert eventually(lambda: not running_with(token), 60)
    assert await works(sandbox)
    await sandbox.destroy()


async def test_its_end_spares_what_is_not_its_own(sandbox: Sandbox) -> None:
    token = new_token()
    async with Commands(sandbox) as commands:
        # The first is left behind by a command that nobody holds any more, the second runs.
        assert (await commands.run(f"setsid sleep {token} >/dev/null 2>&1 &")).ok
        running = await commands.start(["sleep", token])
        first, second = await Kernel.open(sandbox), await Kernel.open(sandbox)
        daemon = await start(first, DAEMON)
        await second.run("kept = 7")
        await first.close()
        assert not running_with(daemon)
        assert len(running_with(token)) == 2
        assert running.end is None
        assert (await second.run("kept")).text == "7"
        await second.close()
        assert len(running_with(token)) == 2


async def test_the_end_of_another_kernel_spares_it(sandbox: Sandbox) -> None:
    first, second = await Kernel.open(sandbox), await Kernel.open(sandbox)
    kept, gone = await start(first, DAEMON), await start(second, DAEMON)
    await second.close()
    assert running_with(kept) and not running_with(gone)
    assert (await first.run("1 + 1")).text == "2"
    await first.close()
    assert not running_with(kept)


@pytest.mark.parametrize("entry", ["cell", "first cell"])
async def test_what_a_kernel_left_behind_at_its_own_end_stays(
    engine: NamespaceEngine, entry: str
) -> None:
    sandbox = await engine.create(spec_for(entry))
    kernel = await Kernel.open(sandbox)
    token = await start(kernel, DAEMON)
    cell = await kernel.run("import os; os._exit(7)")
    assert cell.status is CellStatus.DIED
    await kernel.close()
    assert running_with(token)
    again = await Kernel.open(sandbox)
    assert (await again.run("2 + 2")).text == "4"
    await again.close()
    assert running_with(token)
    await sandbox.destroy()
    assert not running_with(token)


async def test_how_it_ended_is_told(sandbox: Sandbox) -> None:
    process = sandbox.take_kernel()
    assert process is not None and process.end is None
    await process.signal(signal.SIGTERM)
    end = await process.wait()
    assert (end.signal, end.reason) == (signal.SIGTERM, EndReason.SIGNALLED)
    assert process.pid > 1
    await process.close()
    assert await works(sandbox)


async def test_nothing_that_it_does_to_its_parent_helps(sandbox: Sandbox) -> None:
    kernel = await Kernel.open(sandbox)
    cell = await kernel.run(
        "import os, signal\n"
        "assert os.getppid() == 1\n"
        "for each in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, signal.SIGTSTP):\n"
        "    os.kill(1, each)\n"
        "os.path.exists('/proc/1/comm')"
    )
    assert cell.text == "True"
    token = await start(kernel, DAEMON)
    await kernel.close()
    assert not running_with(token)
    assert await works(sandbox)


async def test_killing_everything_ends_it_and_not_the_sandbox(sandbox: Sandbox) -> None:
    kernel = await Kernel.open(sandbox)
    token = await start(kernel, DAEMON)
    # Whoever kills his supervisor loses every process of the sandbox.
    process = await sandbox.start(Command(("sh", "-c", "kill -9 $PPID; sleep 1000")))
    await process.wait()
    assert eventually(lambda: not running_with(token), 60)
    assert (await kernel.process.wait()).signal == signal.SIGKILL
    with pytest.raises(Conflict, match="SIGKILL"):
        await kernel.run("1")
    await kernel.close()
    assert await works(sandbox)


async def test_kernels_end_again_and_again(engine: NamespaceEngine, campaign: Campaign) -> None:
    for _ in range(campaign.count(200)):
        sandbox = await engine.create(spec_for("first cell"))
        kernel = await Kernel.open(sandbox)
        token = await start(kernel, DAEMON)
        await kernel.close()
        assert not running_with(token)
        await sandbox.destroy()
