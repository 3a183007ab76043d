"""What code inside can leave behind besides files and processes is gone, too, after cleaning."""

from __future__ import annotations

import os
import re

import pytest

from atoll.engines.contract import Engine, Feature, Sandbox
from atoll.errors import Conflict, Unavailable
from atoll.model.process import Command
from atoll.node.commands import Commands
from atoll.testing.conformance.running import needs


async def test_shared_memory_and_queues_do_not_stay(engine: Engine, sandbox: Sandbox) -> None:
    """gVisor does not tell which there are, only that there are some; then nobody is told that it is clean."""
    needs(engine, Feature.CLEANING)
    commands = Commands(sandbox)
    is_gvisor = b"4.4.0" in (await commands.run("cat /proc/version")).stdout
    made = await commands.run("ipcmk -M 4096 && ipcmk -S 2; : > /dev/mqueue/left")
    memory, semaphores = re.findall(rb"id: (\d+)", made.stdout)
    if is_gvisor:
        with pytest.raises(Unavailable, match="could not be made as new"):
            await sandbox.clean()
        await sandbox.destroy()
        return
    await sandbox.clean()
    for option, number in (("-m", memory), ("-s", semaphores)):
        gone = await commands.run(["ipcrm", option, number.decode()])
        assert gone.exit_code != 0, option
    assert not (await commands.run("[ -e /dev/mqueue/left ]")).ok


async def test_message_queues_do_not_stay(engine: Engine, sandbox: Sandbox) -> None:
    """Nobody could list them; so they cannot be made, or are gone."""
    needs(engine, Feature.CLEANING)
    commands = Commands(sandbox)
    await commands.run(["python3", "-c", _QUEUES.format(make=0o1000, create=os.O_CREAT)])
    await sandbox.clean()
    left = await commands.run(["python3", "-c", _QUEUES.format(make=0, create=0)])
    assert left.stdout == b"[-1, -1]\n", left


_QUEUES = """
import ctypes
libc = ctypes.CDLL(None)
print([libc.msgget(77, {make} | 0o666), libc.mq_open(b"/left", {create} | 2, 0o600, None)])
"""


async def test_who_kills_what_cleans_gets_a_sandbox_that_is_not_clean(
    engine: Engine, sandbox: Sandbox
) -> None:
    """Code that is quicker than the cleaning can end it, as it may end any program of its own; that is told."""
    needs(engine, Feature.CLEANING)
    hunt = (
        "while :; do for each in /proc/[0-9]*; do kill -9 ${each#/proc/} 2> /dev/null; done; done"
    )
    command = Command(("sh", "-c", f"trap '' TERM; ({hunt}) & ({hunt}) & {hunt}"))
    try:
        await sandbox.start(command)
        await sandbox.clean()
    except (Unavailable, Conflict):
        # Told as not clean; or it ended in the battle: gVisor lets code kill pid 1.
        await sandbox.destroy()
        return
    assert (await Commands(sandbox).run("set -- /proc/[0-9]*; echo $#")).stdout == b"3\n"
