"""In a guest without Landlock: the other layers hold, and the doctor says what is missing."""

from __future__ import annotations

from pathlib import Path

from atoll.engines.contract import Sandbox
from atoll.node.commands import Commands
from atoll.node.doctor import check_landlock
from atoll.node.host import this_machine


def test_the_doctor_says_so() -> None:
    check = check_landlock(this_machine(search_path="/usr/bin", data_dir=Path("/tmp")))
    assert (check.ok, check.required) == (False, False), check
    assert "lsm=landlock" in check.fix


async def test_a_sandbox_works(sandbox: Sandbox) -> None:
    assert (await Commands(sandbox).run("echo x >file && cat file")).stdout == b"x\n"


async def test_what_is_not_the_sandboxs_cannot_be_written(sandbox: Sandbox) -> None:
    for path in ("/usr/x", "/etc/passwd", "/x", "/opt/x", "/proc/sys/kernel/hostname"):
        assert not (await Commands(sandbox).run(f"echo x >{path}")).ok, path
