"""`./atoll` runs at once what is fresh, and sets up first what is not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NATIVE = "src/atoll/engines/namespaces/native"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment only tells how it was called, and whose setup only says so."""
    root = tmp_path / "check out"
    for folder in ("tools", ".venv/bin", f"{NATIVE}/bin"):
        root.joinpath(folder).mkdir(parents=True)
    shutil.copy(ROOT / "atoll", root)
    for name in ("pyproject.toml", "requirements.lock", "hatch_build.py", f"{NATIVE}/spawn.c"):
        root.joinpath(name).touch()
        os.utime(root / name, (1, 1))
    root.joinpath("tools/bootstrap.py").write_text("print('setting up')")
    python = root / ".venv/bin/python"
    python.write_text('#!/bin/sh\necho "ran in $PWD:" "$@"\n')
    python.chmod(0o755)
    root.joinpath(".venv/atoll-ready").write_text(f"{root}\n")
    return root


def run(checkout: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "atoll", *arguments], cwd=cwd, check=True, capture_output=True, text=True
    )


def test_a_product_command_runs_where_the_caller_is(checkout: Path, tmp_path: Path) -> None:
    result = run(checkout, "run", "-c", "print(1, 2)", cwd=tmp_path)
    assert result.stdout == f"ran in {tmp_path}: -P -m atoll run -c print(1, 2)\n"
    assert result.stderr == ""


def test_a_dev_command_runs_in_the_root(checkout: Path, tmp_path: Path) -> None:
    result = run(checkout, "check", cwd=tmp_path)
    assert result.stdout == f"ran in {checkout}: -m tools check\n"
    assert result.stderr == ""


def test_it_can_be_called_through_a_link(checkout: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(checkout / "atoll")
    result = subprocess.run([link, "doctor"], check=True, capture_output=True, text=True)
    assert result.stdout.endswith("-P -m atoll doctor\n")
    assert result.stderr == ""


@pytest.mark.parametrize(
    "changed", ["pyproject.toml", "requirements.lock", "hatch_build.py", f"{NATIVE}/spawn.c"]
)
def test_a_newer_input_is_set_up_first(checkout: Path, tmp_path: Path, changed: str) -> None:
    os.utime(checkout / changed, (2**33, 2**33))
    result = run(checkout, "doctor", cwd=tmp_path)
    assert result.stderr == "setting up\n"
    assert result.stdout == f"ran in {tmp_path}: -P -m atoll doctor\n"


@pytest.mark.parametrize("lost", [".venv/atoll-ready", f"{NATIVE}/bin"])
def test_a_missing_part_is_set_up_first(checkout: Path, tmp_path: Path, lost: str) -> None:
    subprocess.run(["rm", "-r", checkout / lost], check=True)
    assert run(checkout, "doctor", cwd=tmp_path).stderr == "setting up\n"


def test_a_copy_does_not_run_the_original(checkout: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkout, copy)
    assert run(copy, "doctor", cwd=tmp_path).stderr == "setting up\n"


def test_a_failed_setup_is_atolls_own_failure(checkout: Path, tmp_path: Path) -> None:
    checkout.joinpath(".venv/atoll-ready").unlink()
    checkout.joinpath("tools/bootstrap.py").write_text("raise SystemExit('no network')")
    result = subprocess.run([checkout / "atoll", "run"], capture_output=True, text=True)
    assert result.returncode == 125
    assert result.stdout == ""
    assert "no network" in result.stderr


def test_an_interpreter_that_is_too_old_is_passed_over(checkout: Path, tmp_path: Path) -> None:
    checkout.joinpath(".venv/atoll-ready").unlink()
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, script in (
        ("python3", 'case "$*" in *version_info*) exit 1 ;; esac; echo too old'),
        ("python3.14", 'case "$*" in *version_info*) exit 0 ;; esac; echo "new enough: $*"'),
    ):
        programs.joinpath(name).write_text(f"#!/bin/sh\n{script}\n")
        programs.joinpath(name).chmod(0o755)
    result = subprocess.run(
        [checkout / "atoll", "doctor"],
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stderr == "new enough: -m tools.bootstrap\n"
