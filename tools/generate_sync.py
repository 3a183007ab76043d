"""Generates the half of the SDK that waits from the half that awaits.

`client/_async` is written so that replacing words is enough: no task groups, no background work.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    ROOT / "src/atoll/client/_async": ROOT / "src/atoll/client/_sync",
    ROOT / "tests/client/_async": ROOT / "tests/client/_sync",
}
_NOTE = "# Generated from _async by tools/generate_sync.py; edit that.\n"
_WORDS = (
    (r"\basync def\b", "def"),
    (r"\basync with\b", "with"),
    (r"\basync for\b", "for"),
    (r"\bawait ", ""),
    (r"Awaitable\[(tuple\[[^\]]*\])\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\baclosing\b", "closing"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\b_async\b", "_sync"),
    (r"\basync_way\b", "way"),
    (
        r"The SDK for event loops, written by hand; `_sync` is generated from it\.",
        "The SDK for programs that wait.",
    ),
)


def generate(text: str) -> str:
    """Return the waiting form of a module."""
    for pattern, word in _WORDS:
        text = re.sub(pattern, word, text)
    return _NOTE + text


def write_all() -> list[Path]:
    """Write every generated file that differs; return those."""
    changed = []
    for source, target in SOURCES.items():
        for path in sorted(source.glob("*.py")):
            text = _formatted(generate(path.read_text()))
            file = target / path.name
            if not file.is_file() or file.read_text() != text:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
                changed.append(file)
    return changed


def stale() -> list[Path]:
    """Return the generated files that are not what they should be."""
    return [
        target / path.name
        for source, target in SOURCES.items()
        for path in sorted(source.glob("*.py"))
        if not (target / path.name).is_file()
        or (target / path.name).read_text() != _formatted(generate(path.read_text()))
    ]


def _formatted(text: str) -> str:
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    sorted_imports = subprocess.run(
        [*ruff, "check", "--quiet", "--fix", "--select", "I,F401", "--stdin-filename", "x.py", "-"],
        input=text, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    formatted = subprocess.run(
        [*ruff, "format", "--quiet", "--stdin-filename", "x.py", "-"],
        input=sorted_imports.stdout, capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return formatted.stdout


if __name__ == "__main__":
    for written in write_all():
        print(written.relative_to(ROOT))
