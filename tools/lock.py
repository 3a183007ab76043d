"""`requirements.lock`: exact versions and hashes for what `pyproject.toml` asks for.

It is written in requirements form because uv's own lock records registry addresses.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tomllib
from pathlib import Path

from tools.bootstrap import ROOT, VENV

LOCK = ROOT / "requirements.lock"


def is_fresh() -> bool:
    """Whether the lock was made from what `pyproject.toml` asks for now."""
    return LOCK.exists() and LOCK.read_text().startswith(header())


def write(upgrade: bool) -> None:
    """Make the lock anew; versions stay as they are unless they have to change, or `upgrade`."""
    command = [
        str(VENV / "bin/uv"),
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--generate-hashes",
    ]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    command += [
        "--all-extras",
        "--group",
        "dev",
        "--output-file",
        LOCK.name,
        *(["--upgrade"] if upgrade else []),
    ]
    subprocess.run([*command, "pyproject.toml"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    LOCK.write_text(header() + LOCK.read_text())


def header() -> str:
    return f"# Made by ./atoll generate from the requirements {requirements()} in pyproject.toml\n"


def requirements() -> str:
    """Return a digest of all that the resolver reads in `pyproject.toml`."""
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text())
    asked = [
        project["project"]["requires-python"],
        project["project"]["dependencies"],
        project["project"].get("optional-dependencies", {}),
        project["dependency-groups"],
    ]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
