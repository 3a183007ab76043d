"""Who may import whom: import-linter refuses each forbidden import that is planted in a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_user

ROOT = Path(__file__).parent.parent
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the tree that may be spoilt."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("bin"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, "--no-logo", "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def test_the_tree_keeps_the_rules(copy: Path) -> None:
    result = lint(copy)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("atoll/errors.py", "atoll.model.ids"),
        ("atoll/model/planted.py", "atoll.engines.contract"),
        ("atoll/engines/contract.py", "atoll.node"),
        ("atoll/engines/contract.py", "atoll.engines.catalog"),
        ("atoll/engines/namespaces/planted.py", "atoll.engines.catalog"),
        ("atoll/engines/namespaces/planted.py", "atoll.node"),
        ("atoll/engines/wasm/__init__.py", "atoll.engines.namespaces"),
        ("atoll/egress/planted.py", "atoll.engines.contract"),
        ("atoll/egress/planted.py", "atoll.node"),
        ("atoll/node/planted.py", "atoll.engines.namespaces"),
        ("atoll/node/planted.py", "atoll.engines.catalog"),
        ("atoll/node/planted.py", "atoll.cli"),
        ("atoll/client/__init__.py", "atoll.cli"),
        ("atoll/cli/planted.py", "atoll.engines.namespaces"),
        ("atoll/cli/planted.py", "atoll.testing"),
        ("atoll/testing/planted.py", "atoll.engines.namespaces"),
        ("atoll_guest/planted.py", "atoll.errors"),
    ],
)
def test_a_forbidden_import_is_refused(copy: Path, module: str, forbidden: str) -> None:
    file = copy / "src" / module
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as source:
        # Inside a function, where an import would be hidden to escape a cycle.
        source.write(f"\n\ndef planted():\n    import {forbidden}\n")
    result = lint(copy)
    assert result.returncode == 1, result.stdout + result.stderr
    importer = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert f"{importer} -> {forbidden}" in result.stdout


@pytest.mark.parametrize("parent", ["atoll", "atoll/engines"])
def test_a_new_package_is_refused_until_it_is_placed(copy: Path, parent: str) -> None:
    folder = copy / "src" / parent / "unplaced"
    folder.mkdir()
    folder.joinpath("__init__.py").touch()
    result = lint(copy)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "unplaced" in result.stdout


def test_every_folder_has_its_place() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for container, layers in (
        (contract["containers"][0], contract["layers"])
        for contract in contracts["contracts"]
        if contract["type"] == "layers"
    ):
        placed = {name.strip(" ()") for layer in layers for name in layer.split("|")}
        folder = ROOT / "src" / container.replace(".", "/")
        packages = {path.parent.name for path in folder.glob("*/__init__.py")}
        assert packages <= placed, f"not placed in {container}: {packages - placed}"
