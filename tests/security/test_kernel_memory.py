"""Nothing of the host or of another sandbox is in what a kernel can read: each has a word that is looked for."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.security import measured

_HOST = Path(__file__).with_name("secretive_host.py")
_ROOT = Path(__file__).parents[2]
_SECONDS = 300


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What kernels found whose host was full of secrets before the first part of Atoll was started."""
    folders = {
        name: tmp_path_factory.mktemp(f"{name}-{secrets.token_hex(8)}")
        for name in ("home", "data", "folder")
    }
    (folders["home"] / "secret").write_text(secrets.token_hex(16))
    environment = {
        **os.environ,
        "HOME": str(folders["home"]),
        "USER": secrets.token_hex(8),
        "SECRET": secrets.token_hex(16),
        "ATOLL_DATA": str(folders["data"]),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, str(_HOST), secrets.token_hex(16)]
    result = subprocess.run(
        command, env=environment, cwd=folders["folder"], capture_output=True, timeout=_SECONDS
    )
    assert result.returncode == 0, result.stderr.decode()
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.timeout(_SECONDS)
@pytest.mark.parametrize("birth", ["born", "joined", "replaced"])
def test_a_kernel_holds_no_word_of_anybody_else_s(findings: dict[str, Any], birth: str) -> None:
    figure = f"{findings[birth]['memory_bytes'] >> 20} MiB for {', '.join(findings['sought'])}"
    measured.FIGURES[f"searched in a kernel that was {birth}"] = figure
    assert findings[birth]["hits"] == []


def test_the_search_finds_a_word_that_is_there(findings: dict[str, Any]) -> None:
    hits = findings["control"]["hits"]
    assert hits
    assert all(hit.startswith("variable in ") for hit in hits)


def test_enough_words_were_looked_for(findings: dict[str, Any]) -> None:
    """The host's own name may be too short."""
    assert len(set(findings["sought"]) - {"host"}) == 11
