"""What the doctor says of gVisor: what is well, what is not, and the cure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from atoll.engines.gvisor import checks
from atoll.engines.gvisor.runsc import Runsc
from atoll.errors import Unavailable

pytestmark = pytest.mark.any_user

RUNSC = Runsc("/bin/runsc", "release-20250101.0", frozenset(), ("systrap", "ptrace"))


def fail(message: str) -> NoReturn:
    raise Unavailable(message)


def test_without_runsc_there_is_one_line_that_says_how_to_get_it(tmp_path: Path) -> None:
    (check,) = checks.run("no-such-runsc", None, tmp_path)
    assert (check.name, check.ok, check.required) == ("runsc", False, True)
    assert "apt-get install runsc" in check.fix


def test_a_runsc_that_is_something_else_is_told(tmp_path: Path) -> None:
    program = tmp_path / "runsc"
    program.write_text("#!/bin/sh\necho runsc version 1\n")
    program.chmod(0o755)
    (check,) = checks.run(str(program), None, tmp_path)
    assert not check.ok and "install a newer gVisor" in check.found


def test_programs_that_were_not_built_are_named(tmp_path: Path) -> None:
    check = checks.check_programs(tmp_path / "launcher", Path("/bin/sh"))
    assert (check.ok, check.found) == (False, "missing: launcher")
    assert "C compiler" in check.fix
    assert checks.check_programs(Path("/bin/sh")).ok


def test_the_platform_that_works_is_named_among_those_offered() -> None:
    check = checks.check_platform(lambda: replace(RUNSC, platform="ptrace"))
    assert check.ok and check.found == "ptrace (of systrap, ptrace): one came up"


def test_no_platform_that_works_is_told_with_what_each_answered() -> None:
    check = checks.check_platform(lambda: fail("systrap: refused; ptrace: refused"))
    assert (check.ok, check.required) == (False, True)
    assert "systrap: refused" in check.found and "allow ptrace" in check.fix


def test_a_machine_without_cgroups_is_told() -> None:
    check = checks.check_cgroups(lambda: fail("there is no cgroup to write"))
    assert (check.ok, check.required) == (False, True)
    assert "Delegate=yes" in check.fix
