"""What the installed packages promise: `import atoll` is light, the guest needs nothing."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import atoll
from atoll.errors import AtollError

pytestmark = pytest.mark.any_user

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path for folder in ("src", "tools", "tests") for path in (ROOT / folder).rglob("*.py")
)


def modules_after(statement: str, *options: str) -> set[str]:
    """Return the modules that one statement adds to a fresh interpreter."""
    code = (
        "import json, sys\n"
        f"sys.path.insert(0, {str(ROOT / 'src')!r})\n"
        "before = set(sys.modules)\n"
        f"{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    command = [sys.executable, *options, "-c", code]
    return set(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def foreign(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} - sys.stdlib_module_names


def test_import_atoll_loads_nothing_else() -> None:
    added = modules_after("import atoll")
    assert foreign(added) == {"atoll"}
    assert {name for name in added if name.startswith("atoll")} == {"atoll"}
    assert "asyncio" not in added


def test_errors_are_public_and_load_nothing_foreign() -> None:
    added = modules_after("from atoll import NotFound")
    assert foreign(added) == {"atoll"}
    assert "asyncio" not in added


def test_every_error_is_exported() -> None:
    tree: list[type[AtollError]] = [AtollError, *AtollError.__subclasses__()]
    assert {error.__name__ for error in tree} < set(atoll.__all__)
    for error in tree:
        assert getattr(atoll, error.__name__) is error


def test_the_version_is_that_of_the_project() -> None:
    assert f'version = "{atoll.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = atoll.nonsense


def test_the_guest_runs_in_a_bare_interpreter() -> None:
    every_module = (
        "import importlib, pkgutil, atoll_guest\n"
        "for module in pkgutil.walk_packages(atoll_guest.__path__, 'atoll_guest.'):\n"
        # These are loaded only where there is an IPython.
        "    if not module.name.endswith(('__main__', 'display', 'shell')): importlib.import_module(module.name)"
    )
    assert foreign(modules_after(every_module, "-I", "-S")) == {"atoll_guest"}


def test_the_guest_is_written_for_python_3_8() -> None:
    for path in (ROOT / "src/atoll_guest").rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 8))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(), str(path)))
