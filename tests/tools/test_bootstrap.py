"""The setup pins what it installs and notices what has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import bootstrap, lock


def test_one_package_is_taken_from_the_lock_with_its_hashes() -> None:
    first, *hashes = bootstrap.locked("uv").splitlines()
    assert first.startswith("uv==")
    assert hashes
    assert all(line.startswith("    --hash=sha256:") for line in hashes)
    assert not hashes[-1].endswith("\\")


def test_a_package_that_is_not_locked_is_named() -> None:
    with pytest.raises(bootstrap.SetupFailed, match="does not list left-pad"):
        bootstrap.locked("left-pad")


def test_the_state_tells_which_part_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = tmp_path / "some" / "native"
    native.mkdir(parents=True)
    for name in ("pyproject.toml", "requirements.lock", "hatch_build.py", "some/native/spawn.c"):
        (tmp_path / name).touch()
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "ENGINES", tmp_path)
    before = bootstrap.State.wanted()
    assert bootstrap.State.wanted() == before

    (native / "bin").mkdir()
    (native / "bin/init").touch()
    assert bootstrap.State.wanted() == before

    (native / "spawn.c").write_text("int main;")
    (tmp_path / "some/wire.py").touch()
    after = bootstrap.State.wanted()
    assert after.native != before.native
    assert after.environment == before.environment

    (tmp_path / "requirements.lock").write_text("anyio")
    assert bootstrap.State.wanted().environment != before.environment


def test_a_failed_step_shows_its_output() -> None:
    with pytest.raises(bootstrap.SetupFailed, match="no such thing"):
        bootstrap.step(["sh", "-c", "echo no such thing >&2; exit 3"])


def test_a_broken_interpreter_is_noticed(tmp_path: Path) -> None:
    assert not bootstrap.is_working(tmp_path / "python")
    assert bootstrap.is_working(bootstrap.PYTHON)


def test_the_lock_is_made_from_the_projects_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lock.is_fresh()
    project = (bootstrap.ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(project.replace('"anyio>=', '"anyio>=1'))
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    assert not lock.is_fresh()
