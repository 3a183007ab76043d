"""`./atoll test`: the checks, then the tests, then, for root, the tests again as an ordinary user."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest

from tools import check, ordinary_user, system_packages
from tools.bootstrap import PYTHON, ROOT


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./atoll test",
        description="Run the tests. Anything else on the line goes to pytest.",
        allow_abbrev=False,
    )
    parser.add_argument("--here", action="store_true", help="only pytest, only as this user")
    options, for_pytest = parser.parse_known_args(arguments)

    whole = not any(os.path.exists(ROOT / word.split("::")[0]) for word in for_pytest)
    try:
        system_packages.ensure(system_packages.TO_TEST, "a full test run")
    except system_packages.MissingPackages as error:
        print(f"atoll: {error}", file=sys.stderr)

    failed = []
    if whole and not options.here and check.main([]) != 0:
        failed.append("check")
    if run_pytest(for_pytest) != 0:
        failed.append(f"tests as {'root' if os.geteuid() == 0 else 'this user'}")
    if os.geteuid() == 0 and not options.here and ordinary_user.run_tests(for_pytest) != 0:
        failed.append("tests as an ordinary user")
    if failed:
        print(f"atoll: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_pytest(arguments: list[str]) -> int:
    as_root = os.geteuid() == 0
    selection = [] if as_root else ["-m", "not root_only"]
    command = [str(PYTHON), "-m", "pytest", *selection, *arguments]
    code = subprocess.run(command, cwd=ROOT).returncode
    # A folder may hold nothing but tests for root.
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED and not as_root else code
