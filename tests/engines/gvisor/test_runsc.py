"""What is found out about a runsc."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.engines.gvisor.runsc import (
    Runsc,
    find_runsc,
    parse_flags,
    parse_platforms,
    parse_version,
)
from atoll.errors import Unavailable

pytestmark = pytest.mark.any_user

_FLAGS = """  -file-access value
    \tspecifies which filesystem validation to use for the root mount: exclusive (default), shared.
  -network value
    \tspecifies which network to use: sandbox (default), host, none.
  -platform string
    \tspecifies which platform to use: ptrace (default), kvm. (default "ptrace")
"""


def test_the_version_is_read() -> None:
    assert parse_version("runsc version release-20240401.0\nspec: 1.1.0\n") == "release-20240401.0"
    assert parse_version("something else") == "unknown"


def test_flags_are_names_and_not_what_is_said_of_them() -> None:
    assert parse_flags(_FLAGS) == {"file-access", "network", "platform"}


def test_platforms_come_best_first_and_unknown_ones_not_at_all() -> None:
    assert parse_platforms("kvm\nptrace\n") == ("kvm", "ptrace")
    assert parse_platforms("ptrace\nsystrap\nother\n") == ("systrap", "ptrace")


def test_only_flags_that_a_version_knows_are_said() -> None:
    runsc = Runsc(
        "/bin/runsc", "1", frozenset({"root", "network", "directfs"}), ("ptrace",), "ptrace"
    )
    command = runsc.command(Path("/state"), is_shared=False)
    assert list(command) == ["/bin/runsc", "--network=none", "--directfs=false", "--root=/state"]


def test_a_program_that_is_not_there_is_refused_with_what_to_install() -> None:
    with pytest.raises(Unavailable, match="apt-get install runsc"):
        find_runsc("no-such-runsc")


def test_a_program_that_is_something_else_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "runsc"
    program.write_text("#!/bin/sh\necho no flags\n")
    program.chmod(0o755)
    with pytest.raises(Unavailable, match="knows no root"):
        find_runsc(str(program))


def test_a_program_that_cannot_run_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "runsc"
    program.write_bytes(b"\x7fELF and no more")
    program.chmod(0o755)
    with pytest.raises(Unavailable, match="cannot be run"):
        find_runsc(str(program))
