"""Missing system packages are installed by root and named to everybody else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.system_packages import MissingPackages, SystemPackage, ensure, library, program

ABSENT = SystemPackage("libabsent1", lambda: False)
PRESENT = SystemPackage("libpresent1", lambda: True)


def test_what_is_there_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    ensure([PRESENT], "this test")


def test_an_ordinary_user_is_told_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingPackages, match=r"apt-get install libabsent1$"):
        ensure([ABSENT, PRESENT], "this test")


def test_root_installs_after_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "installed"
    fake_apt_get(tmp_path, f'case "$*" in *install*) echo "$*" >{installed} ;; esac', monkeypatch)
    ensure([SystemPackage("libabsent1", installed.exists)], "this test")
    assert installed.read_text().endswith("install --yes --no-install-recommends libabsent1\n")


def test_a_failing_apt_get_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_apt_get(tmp_path, "echo no such mirror; exit 100", monkeypatch)
    with pytest.raises(MissingPackages, match="no such mirror"):
        ensure([ABSENT], "this test")


def test_an_install_that_changes_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_apt_get(tmp_path, "exit 0", monkeypatch)
    with pytest.raises(MissingPackages, match="still not usable: libabsent1"):
        ensure([ABSENT], "this test")


def test_programs_and_libraries_are_seen() -> None:
    assert program("sh")()
    assert not program("no-such-program")()
    assert library("libc.so.6")()
    assert not library("libnosuch.so.1")()


def fake_apt_get(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apt_get = folder / "apt-get"
    apt_get.write_text(f"#!/bin/sh\n{script}\n")
    apt_get.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
