"""Widely used packages install and work inside, under the same filter as everything else.

The lists were written before any package was tried. A whole campaign writes down what came of each in docs/packages.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from atoll import Sandbox
from atoll.errors import CommandFailed
from tests.campaigns import Campaign

FOLDER = Path(__file__).parent / "packages"
DOCS = Path(__file__).parents[2] / "docs" / "packages.md"
# Of a hundred, one may be broken by whoever made it.
MOST_FAILURES = 0.01
AT_ONCE = max(2, os.cpu_count() or 1)
LIMITS = {
    "memory": "6g",
    "home": "3g",
    "tmp": "1g",
    "workspace": "1g",
    "inodes": 200_000,
    "enforcement": "best_effort",
}
SMOKE_SECONDS = 240.0


class Package(NamedTuple):
    name: str
    smoke: str  # what has to run


class Outcome(NamedTuple):
    package: Package
    fault: str  # empty: it works


def read_list(name: str) -> Sequence[Package]:
    lines = (FOLDER / name).read_text().splitlines()
    return [Package(*line.split(": ", 1)) for line in lines if line and not line.startswith("#")]


def try_python(package: Package) -> Outcome:
    with Sandbox(network="registries", limits=LIMITS) as sandbox:
        if fault := install(sandbox, package, "python"):
            return Outcome(package, fault)
        cell = sandbox.run_code(package.smoke, timeout=SMOKE_SECONDS)
    if cell.ok:
        return Outcome(package, "")
    error = cell.error
    return Outcome(package, f"{error.name}: {error.value}" if error else cell.death or cell.status)


def try_node(package: Package) -> Outcome:
    with Sandbox(template="base", network="registries", limits=LIMITS) as sandbox:
        if fault := install(sandbox, package, "node"):
            return Outcome(package, fault)
        code = f"Promise.resolve({package.smoke}).then(() => process.exit(0))"
        result = sandbox.commands.run(["node", "-e", code], timeout=SMOKE_SECONDS)
    return Outcome(package, "" if result.ok else result.stderr.decode(errors="replace")[-500:])


def install(sandbox: Sandbox, package: Package, language: str) -> str:
    """Install it, twice if need be: an index may have a bad moment. Return what went wrong."""
    for _ in range(2):
        try:
            sandbox.install(package.name, language=language, timeout=900)
        except CommandFailed as error:
            fault = error.message
        else:
            return ""
    return fault


def try_some(
    try_one: Callable[[Package], Outcome], packages: Sequence[Package], count: int, chance: Random
) -> Sequence[Outcome]:
    chosen = sorted(chance.sample(list(packages), min(count, len(packages))))
    with ThreadPoolExecutor(AT_ONCE) as workers:
        return list(workers.map(try_one, chosen))


def report(outcomes: Sequence[Outcome]) -> None:
    """Print what failed, and fail if that is too much."""
    failed = [each for each in outcomes if each.fault]
    print(f"\n{len(outcomes) - len(failed)} of {len(outcomes)} packages work")
    for each in failed:
        print(f"{each.package.name}: {each.fault[-300:]}")
    # A share of the list may hold one of those.
    assert len(failed) <= max(1, len(outcomes) * MOST_FAILURES), failed


def write_docs(outcomes: Sequence[Outcome], title: str) -> None:
    """Put a table of all into the docs, in place of the last one."""
    begin, end = f"<!-- {title}: generated -->", f"<!-- {title}: end -->"
    good = " · ".join(each.package.name for each in outcomes if not each.fault)
    bad = "\n".join(f"- {each.package.name}" for each in outcomes if each.fault)
    text = DOCS.read_text()
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    works = sum(not each.fault for each in outcomes)
    table = f"{begin}\n{works} of {len(outcomes)} work: {good}\n"
    table += f"\nThese do not:\n\n{bad}\n" if bad else ""
    DOCS.write_text(f"{before}{table}{end}{after}")


def test_the_lists_are_as_long_as_they_should_be() -> None:
    assert len(read_list("pypi.txt")) >= 300
    assert len(read_list("npm.txt")) >= 60


@pytest.mark.any_user
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("name", "try_one"), [("pypi", try_python), ("npm", try_node)], ids=["pypi", "npm"]
)
def test_widely_used_packages_work(
    name: str, try_one: Callable[[Package], Outcome], campaign: Campaign
) -> None:
    packages = read_list(f"{name}.txt")
    outcomes = try_some(try_one, packages, campaign.count(len(packages)), campaign.random)
    if campaign.long:
        write_docs(outcomes, name)
    report(outcomes)
