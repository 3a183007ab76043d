"""What `import atoll` offers, and how little it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import atoll

pytestmark = pytest.mark.any_user


@pytest.mark.parametrize("name", atoll.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(atoll, name)
    assert name == "__version__" or value.__name__ == name
    assert name in dir(atoll)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="Sandboxes"):
        atoll.Sandboxes  # noqa: B018 - asking is the test


def test_importing_loads_nothing_but_itself() -> None:
    code = "import sys; before = set(sys.modules); import atoll; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name.partition(".")[0] for name in done.stdout.split()}
    assert ours - set(sys.stdlib_module_names) == {"atoll"}
    for heavy in ("asyncio", "socket", "subprocess", "ssl", "ctypes"):
        assert heavy not in done.stdout.split()


def test_the_waiting_half_has_the_names_of_the_other() -> None:
    assert public(atoll.Sandbox) == public(atoll.AsyncSandbox)
    for part in ("commands", "files", "kernels", "ports", "terminals"):
        waiting, awaiting = getattr(atoll.Sandbox(), part), getattr(atoll.AsyncSandbox(), part)
        assert public(waiting) == public(awaiting)


def public(value: object) -> set[str]:
    return {name for name in dir(value) if not name.startswith("_")}
