"""What must not lie in the tree: addresses of registries, paths of a machine, uv's own lock."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_user

ROOT = Path(__file__).parent.parent
REGISTRIES = ("pypi", "pythonhosted", "npmjs", "debian", "ubuntu", "docker", "crates")


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """All files that git tracks or would track."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    paths = (ROOT / name for name in listing.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def lines_matching(files: list[Path], pattern: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in files
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_no_file_holds_a_registry_address(files: list[Path]) -> None:
    pattern = rf"https?://[a-z0-9.-]*(?:{'|'.join(REGISTRIES)})"
    assert lines_matching(files, pattern) == []


def test_no_file_holds_a_path_of_this_machine(files: list[Path]) -> None:
    assert len(ROOT.parts) > 2, f"{ROOT} is too short to be told from an ordinary path"
    assert lines_matching(files, rf"(?<![\w.]){re.escape(str(ROOT))}(?![\w-])") == []


def test_uv_lock_is_not_kept(files: list[Path]) -> None:
    assert [path for path in files if path.name in {"uv.lock", "pylock.toml"}] == []


def test_the_lock_pins_every_package_with_a_hash_and_no_address() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    heads = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert heads
    for head in heads:
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [^/]+)? \\", head), head
    for line in lines:
        if line not in heads:
            assert re.fullmatch(r"#.*|    --hash=sha256:[0-9a-f]{64}( \\)?", line), line
    assert not any("://" in line for line in lines)


def test_ci_runs_the_tests() -> None:
    assert "./atoll test" in (ROOT / ".ci/run").read_text()
