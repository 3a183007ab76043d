"""`./atoll check`: format, lint, types, imports, generated files."""

from __future__ import annotations

import sys

from tools import stages


def main(arguments: list[str]) -> int:
    if arguments:
        print("atoll: check takes no arguments", file=sys.stderr)
        return 2
    folders = stages.python_folders()
    return stages.run(
        {
            "format": ["ruff", "format", "--check", "--quiet", "--diff", *folders],
            "lint": ["ruff", "check", "--quiet", *folders],
            "types": ["mypy", "--no-error-summary", *folders],
            "imports": ["lint-imports", "--no-logo"],
            "TypeScript": ["python", "-m", "tools.typescript"],
            "generated files": ["python", "-m", "tools", "generate", "--check"],
        }
    )
