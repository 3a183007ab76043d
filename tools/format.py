"""`./atoll format`: format and safe fixes."""

from __future__ import annotations

from tools import stages


def main(arguments: list[str]) -> int:
    folders = arguments or stages.python_folders()
    return stages.run(
        {
            "fixes": ["ruff", "check", "--fix-only", "--quiet", *folders],
            "format": ["ruff", "format", "--quiet", *folders],
        }
    )
