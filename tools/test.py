"""`./atoll test`: the checks, then the tests; for root also as an ordinary user."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

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
    codes = run_tests(for_pytest, once=options.here or os.geteuid() != 0)
    failed += [f"tests as {who}" for who, code in codes.items() if code != 0]
    if failed:
        print(f"atoll: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_tests(arguments: list[str], *, once: bool) -> dict[str, int]:
    """Run the tests, and unless `once` as an ordinary user, too; return the exit codes.

    Either run waits more than it computes, so they go side by side. Whole campaigns fill the machine: one by one.
    """
    if once:
        return {"this user": run_pytest(arguments)}
    if "--long" in arguments:
        return {
            "root": run_pytest(arguments),
            "an ordinary user": ordinary_user.run_tests(arguments, sys.stdout),
        }
    with ThreadPoolExecutor(1) as beside, tempfile.TemporaryFile("w+") as output:
        ordinary = beside.submit(ordinary_user.run_tests, arguments, output)
        codes = {"root": run_pytest(arguments), "an ordinary user": ordinary.result()}
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout)
        return codes


def run_pytest(arguments: list[str]) -> int:
    as_root = os.geteuid() == 0
    selection = [] if as_root else ["-m", "not root_only"]
    command = [str(PYTHON), "-m", "pytest", *selection, *arguments]
    code = subprocess.run(command, cwd=ROOT).returncode
    # A folder may hold nothing but tests for root.
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED and not as_root else code
