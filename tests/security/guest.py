"""A sandbox seen by an attacker, who puts his programs there and reads what they found."""

from __future__ import annotations

import functools
import json
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from atoll.engines.contract import Sandbox
from atoll.engines.system_calls import numbers
from atoll.node.background import BackgroundProcess
from atoll.node.files import Files
from tests.security.entries import Entry, by_argv

ATTACKS = Path(__file__).parent / "attacks"
# The attacks have the same module names inside as for the type checker.
PACKAGE = "tests.security.attacks"
FOLDER = PACKAGE.replace(".", "/")
_MARK = "@@ "

# A call to try: its name, and arguments that are numbers, or texts that stand for their address.
Call = tuple[str, Sequence[int | str]]


@dataclass(frozen=True)
class Guest:
    """A sandbox, and one of the entries into it."""

    sandbox: Sandbox
    entry: Entry = by_argv

    async def attack(self, name: str, *arguments: str) -> dict[str, Any]:
        """Run a Python attack and return its findings."""
        for module in ("kernel", name):
            await self._put(f"{module}.py")
        argv = ("python3", "-B", "-m", f"{PACKAGE}.{name}", *arguments)
        return parse_findings(await self.entry(self.sandbox, argv))

    async def program(self, name: str, *arguments: str) -> dict[str, Any]:
        """Run a compiled attack and return its findings."""
        path = await self.put_program(name)
        return parse_findings(await self.entry(self.sandbox, (path, *arguments)))

    async def put_program(self, name: str) -> str:
        """Write a compiled attack into the sandbox and return where it is."""
        path = f"{FOLDER}/{name}"
        await self.sandbox.workspace.write(path, compiled(name), mode=0o755)
        return f"/workspace/{path}"

    async def calls(self, calls: Sequence[Call]) -> list[str]:
        """Make system calls, each in its own process; return 'OK', or what error or signal came."""
        # A call that this machine does not have has no number, and is not there for anybody.
        numbered = [(table().get(name, -1), arguments) for name, arguments in calls]
        await self.sandbox.workspace.write("calls.json", json.dumps(numbered).encode())
        found = await self.attack("make_calls", "/workspace/calls.json")
        answers: list[str] = found["answers"]
        assert len(answers) == len(calls)
        return answers

    async def put(self, name: str) -> str:
        """Write a Python attack into the sandbox and return where it is."""
        await self._put(f"{name}.py")
        return f"/workspace/{FOLDER}/{name}.py"

    async def _put(self, name: str) -> None:
        await self.sandbox.workspace.write(f"{FOLDER}/{name}", (ATTACKS / name).read_bytes())

    @property
    def files(self) -> Files:
        """The sandbox's files."""
        return Files(self.sandbox.workspace)


async def until_ready(process: BackgroundProcess) -> None:
    """Wait until an attack that goes on has said that it has begun."""
    with anyio.fail_after(60):
        while b"ready" not in process.logs():
            await anyio.sleep(0.01)


def parse_findings(printed: bytes) -> dict[str, Any]:
    """Return what an attack reported in its last line."""
    lines = printed.decode("utf-8", "replace").splitlines()
    found = [line for line in lines if line.startswith(_MARK)]
    assert found, f"the attack did not report: {printed[-4000:]!r}"
    findings: dict[str, Any] = json.loads(found[-1].removeprefix(_MARK))
    return findings


@functools.cache
def compiled(name: str) -> bytes:
    """Return a static program made from `attacks/NAME.c`."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the attacks need a C compiler"
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, name)
        source = ATTACKS / f"{name}.c"
        flags = ("-O2", "-static", "-pthread", "-Wall", "-Wextra", "-Werror", "-std=gnu11")
        subprocess.run([compiler, *flags, str(source), "-o", str(target)], check=True)
        return target.read_bytes()


def table() -> dict[str, int]:
    """Return the numbers of this machine's system calls."""
    return numbers.X86_64 if platform.machine() == "x86_64" else numbers.ARM64
