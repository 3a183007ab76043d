"""T56: an init that hostile code has taken over. The host takes no harm from whatever it says."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from atoll.engines.contract import NewFile, Sandbox
from atoll.engines.namespaces import ports, process, sandbox, workspace
from atoll.engines.namespaces.engine import NamespaceEngine, NamespaceSettings
from atoll.errors import AtollError
from atoll.model.file import FileInfo, FileKind
from atoll.model.process import Command, TerminalSize
from atoll.model.sandbox import SandboxSpec
from atoll.model.tree import TreeLimits
from atoll.node.commands import Commands
from tests.campaigns import Campaign
from tests.host_state import eventually
from tests.security.builds import Builds
from tests.security.guest import Guest

SILENT = 1
KINDS = {
    SILENT: "silent",
    2: "closing",
    3: "ending",
    4: "noise",
    5: "plausible",
    6: "with descriptors",
    7: "with too many descriptors",
}


@contextmanager
def impatience() -> Iterator[None]:
    """The host waits for an answer only so long; here it does not wait long."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (workspace, "_SECONDS"),
            (ports, "_SECONDS"),
            (sandbox, "_SECONDS"),
            (sandbox, "_START_SECONDS"),
            (process, "_KILL_SECONDS"),
        ):
            patch.setattr(module, name, 0.3)
        yield


@pytest.mark.parametrize("kind", KINDS, ids=KINDS.get)
async def test_an_evil_init_harms_nobody_but_its_own_sandbox(
    kind: int,
    testing_builds: Builds,
    data_dir: Path,
    guest: Guest,
    campaign: Campaign,
) -> None:
    binaries = testing_builds.make_evil(kind)
    engine = NamespaceEngine(NamespaceSettings(data_dir, binaries=binaries))
    try:
        with impatience():
            await (await engine.create(SandboxSpec())).destroy()
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(campaign.count(20 if kind == SILENT else 80)):
                await listen_to(await engine.create(SandboxSpec()))
        # Output that nobody wants any more is read to its end by another thread.
        assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before, 60)
    finally:
        await engine.close()
    # Others go on.
    assert (await Commands(guest.sandbox).run("echo fine")).stdout == b"fine\n"


async def listen_to(victim: Sandbox) -> None:
    for name, action in everything(victim).items():
        with anyio.move_on_after(60) as patience:
            await only_our_errors(name, action)
        assert not patience.cancelled_caught, f"{name} hangs"
    with anyio.fail_after(60):
        await victim.destroy()


async def only_our_errors(name: str, action: Callable[[], Awaitable[object]]) -> None:
    try:
        await action()
    except AtollError:
        pass  # what became of the sandbox is told in our own terms
    except Exception as error:
        raise AssertionError(f"{name} raises {error!r}") from error


def everything(victim: Sandbox) -> dict[str, Callable[[], Awaitable[object]]]:
    files = victim.workspace
    return {
        "run": lambda: run(victim, Command(("true",))),
        "terminal": lambda: run(victim, Command(("true",), stdin=True, terminal=TerminalSize())),
        "stat": lambda: files.stat("x"),
        "list": lambda: files.list(),
        "read": lambda: read(victim),
        "write": lambda: files.write("x", b"small"),
        "write much": lambda: files.write("x", bytes(1 << 20)),
        "write many": lambda: files.write_many([NewFile("x", b"small"), NewFile("y", None)]),
        "read many": lambda: files.read_many([FileInfo("x", FileKind.FILE, 9, 0, 0)]),
        "copy in": lambda: copied(victim, inwards=True),
        "copy out": lambda: copied(victim, inwards=False),
        "make": lambda: files.make_dir("x"),
        "remove": lambda: files.remove("x", recursive=True),
        "rename": lambda: files.rename("x", "y"),
        "connect": lambda: closed(victim.connect(8080)),
        "listen": lambda: closed(victim.listen(8080)),
    }


async def run(victim: Sandbox, command: Command) -> None:
    started = await victim.start(command)
    try:
        with anyio.move_on_after(0.5):
            async for _output in started.output():
                pass
        await started.signal(15)
        with anyio.move_on_after(0.5):
            await started.wait()
    finally:
        await started.close()


async def read(victim: Sandbox) -> None:
    count = 0
    async for chunk in victim.workspace.read("x"):
        count += len(chunk)
        if count > 64 << 20:
            return


async def copied(victim: Sandbox, *, inwards: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fd = os.open(folder, os.O_RDONLY)
        try:
            if inwards:
                Path(folder, "file").write_bytes(bytes(100_000))
                await victim.workspace.copy_in(fd, "x", TreeLimits())
            else:
                await victim.workspace.copy_out("x", fd, TreeLimits())
        finally:
            os.close(fd)


async def closed(opening: Awaitable[object]) -> None:
    (await opening).close()  # type: ignore[attr-defined]
