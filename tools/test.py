"""`./atoll test`: the checks, then the tests; for root also as an ordinary user."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import IO

import pytest

from tools import debian_julia, ordinary_user, system_packages
from tools.bootstrap import PYTHON, ROOT
from tools.places import Failed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./atoll test",
        description="Run the tests. Anything else on the line goes to pytest.",
        allow_abbrev=False,
    )
    parser.add_argument("--here", action="store_true", help="only pytest, only as this user")
    options, for_pytest = parser.parse_known_args(arguments)

    # A shell has those ignored that it starts in the background, and with them all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    whole = not any(is_path(word) for word in for_pytest)
    try:
        system_packages.ensure(system_packages.TO_TEST, "a full test run")
    except system_packages.MissingPackages as error:
        print(f"atoll: {error}", file=sys.stderr)
    try:
        debian_julia.ensure()
    except Failed as error:
        print(f"atoll: tests of Julia are skipped: {error}", file=sys.stderr)

    once = options.here or os.geteuid() != 0
    with checks_beside() if whole and not options.here else nullcontext() as checks:
        codes = run_tests(for_pytest, once=once)
    failed = [f"tests as {who}" for who, code in codes.items() if code != 0]
    if checks is not None and checks.returncode != 0:
        failed.append("check")
    if failed:
        print(f"atoll: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


@contextmanager
def checks_beside() -> Iterator[subprocess.Popen[str]]:
    """Run the checks meanwhile, which take one processor and wait for nothing; show at the end what they said."""
    with tempfile.TemporaryFile("w+") as output:
        command = [str(PYTHON), "-m", "tools", "check"]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True
        ) as checks:
            yield checks
        output.seek(0)
        shutil.copyfileobj(output, sys.stdout)


# Root's attacks have a run of their own, and so has what waits for other engines, which shortens the whole. What is the same whoever runs it is left to one run.
SELECTIONS = {
    "root": "not any_user and not attack and not containers",
    "root, attacking": "not any_user and attack and not containers",
    "root, in containers": "containers and not contract and not deployed",
    "root, by the contract and deployed": "containers and (contract or deployed)",
    "an ordinary user": "not root_only and not any_user",
    "any user": "any_user",
}


def run_tests(arguments: list[str], *, once: bool) -> dict[str, int]:
    """Run the tests, and unless `once` as ordinary users, too; return the exit codes.

    All runs wait more than they compute, so they go side by side. Whole campaigns fill the machine: one by one, and
    then nothing gets a second chance.
    """
    if once:
        return {"this user": run_pytest(arguments)}
    with tempfile.TemporaryDirectory(prefix="atoll-") as folder:
        failures = {who: Path(folder, str(number)) for number, who in enumerate(SELECTIONS)}
        if "--long" in arguments:
            return {who: run_as(who, arguments, sys.stdout, failures[who]) for who in SELECTIONS}
        codes = run_beside(arguments, failures)
        return {**codes, **run_again(arguments, failures)}


def run_beside(arguments: list[str], failures: Mapping[str, Path]) -> dict[str, int]:
    """Run all shares at once, and show their outputs one after the other; return the exit codes."""
    with ThreadPoolExecutor(len(SELECTIONS)) as beside, ExitStack() as files:
        outputs = {who: files.enter_context(tempfile.TemporaryFile("w+")) for who in SELECTIONS}
        runs = {
            who: beside.submit(run_as, who, arguments, outputs[who], failures[who])
            for who in SELECTIONS
        }
        codes = {}
        for who, run in runs.items():
            codes[who] = run.result()
            outputs[who].seek(0)
            shutil.copyfileobj(outputs[who], sys.stdout)
        return codes


# More than a busy machine brings about: something is broken.
MOST_UNSTEADY = 3


def run_again(arguments: list[str], failures: Mapping[str, Path]) -> dict[str, int]:
    """Run by itself what failed while everything ran at once; return the new exit codes.

    It is no fault to be slow where six runs share two processors, but it is one to fail alone. What passes now is
    named all the same: somebody has to find out what it did not wait for.
    """
    names = {who: path.read_text().splitlines() for who, path in failures.items() if path.exists()}
    if sum(map(len, names.values())) > MOST_UNSTEADY:
        return {}
    options = [word for word in arguments if not is_path(word)]
    codes = {}
    for who, failed in names.items():
        print(f"── once more, with nothing beside it, as {who}: {' '.join(failed)}", flush=True)
        codes[who] = run_as(who, [*options, *failed], sys.stdout, failures[who])
        if codes[who] == 0:
            print(
                "".join(
                    f"atoll: UNSTEADY {name}: failed beside the others, passed alone\n"
                    for name in failed
                )
            )
    return codes


def run_as(who: str, arguments: list[str], output: IO[str], failures: Path) -> int:
    """Run one share of the tests, and write the names of those that failed to a file; root's are shown as they run."""
    selection = ["-m", SELECTIONS[who]]
    if not who.startswith("root"):
        return ordinary_user.run_tests(arguments, output, SELECTIONS[who], failures)
    words = [*selection, f"--failures={failures}", *arguments]
    if who == "root":
        return run_pytest(words)
    # With a place of its own, where nobody else's files come and go. Its name is short: sockets lie below it.
    with tempfile.TemporaryDirectory(prefix="atoll-") as place:
        return run_pytest(words, output, {"TMPDIR": place})


def is_path(word: str) -> bool:
    return os.path.exists(ROOT / word.split("::")[0])


def run_pytest(
    arguments: list[str],
    output: IO[str] | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> int:
    as_root = os.geteuid() == 0
    selection = [] if as_root else ["-m", "not root_only"]
    command = [str(PYTHON), "-m", "pytest", *selection, *arguments]
    code = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
    ).returncode
    # A folder may hold nothing but tests for somebody else.
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code
