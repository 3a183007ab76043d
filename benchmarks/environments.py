"""Python environments of peers: one each, apart from the project's own and outside the checkout."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.interpreter import real_python, version_of
from tools.bootstrap import VENV
from tools.places import digest_of, made_once, must_run, own_folder, say


def make_environment(place: Path, name: str, requirements: Sequence[str]) -> Path:
    """Return the interpreter of an environment with these packages, made on first use."""
    python = real_python()
    digest = digest_of(requirements, str(python), version_of(python))
    folder = own_folder("environments", place) / f"{name}-{digest}"
    made_once(folder, lambda target: _make(target, python, requirements))
    return folder / "bin/python"


def site_packages(python: Path) -> Path:
    """Return the folder that holds the packages of an environment."""
    return next(python.parent.parent.glob("lib/python*/site-packages"))


def versions_in(python: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the installed versions of these distributions."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    found = must_run([str(python), "-I", "-c", code, *names]).decode().split()
    return dict(zip(names, found, strict=True))


def _make(target: Path, python: Path, requirements: Sequence[str]) -> None:
    say(f"making an environment with {' '.join(requirements)}")
    uv = str(VENV / "bin/uv")
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    # Relocatable: it gets its final name only once it is whole.
    make = [uv, "venv", "--quiet", "--relocatable", "--python", str(python), str(target)]
    must_run(make, env=environment)
    # Compiled now: otherwise the first runs would be slower than all later ones.
    install = [uv, "pip", "install", "--quiet", "--compile-bytecode"]
    must_run([*install, "--python", str(target / "bin/python"), *requirements], env=environment)
