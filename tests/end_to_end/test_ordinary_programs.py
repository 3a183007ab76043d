"""Ordinary programs work inside, each in a sandbox of its own, and print what they do elsewhere."""

from __future__ import annotations

import re

import pytest

from atoll.engines.contract import Sandbox
from atoll.node.commands import Commands
from tests.end_to_end.programs import PROGRAMS, Program
from tests.engine_fixtures import engine, sandbox, spare

__all__ = ["engine", "sandbox", "spare"]

SECONDS = 60


@pytest.mark.parametrize("engine", ["namespaces"], indirect=True, scope="session")
@pytest.mark.parametrize("program", [pytest.param(each, id=each.name) for each in PROGRAMS])
async def test_it_works(sandbox: Sandbox, program: Program) -> None:
    commands = Commands(sandbox)
    for need in program.needs.split():
        search = (
            ("test", "-e", need) if need.startswith("/") else ("sh", "-c", f"command -v {need}")
        )
        if not (await commands.run(search)).ok:
            pytest.skip(f"{need} is not installed where sandboxes see it")
    await sandbox.workspace.write("program", program.source.encode())
    result = await commands.run(program.runs, timeout=SECONDS)
    printed, complaints = result.stdout.decode().strip(), result.stderr.decode().strip()
    assert (result.exit_code, complaints) == (0, ""), printed
    if program.prints.startswith("~"):
        assert re.fullmatch(program.prints[1:], printed), printed
    else:
        assert printed == program.prints


def test_there_are_enough_of_them() -> None:
    names = [program.name for program in PROGRAMS]
    assert len(names) == len(set(names)) >= 60
