"""Cells that give more than anybody wants: the program that runs them does not grow with it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.campaigns import Campaign

MIB = 1 << 20

pytestmark = pytest.mark.any_user

# In a program of its own: how much memory it had at most tells nothing where other tests ran before.
_PROGRAM = """
import json, resource, sys
from atoll import Sandbox

def most_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

with Sandbox() as sandbox:
    sandbox.run_code("1")
    before = most_memory()
    cell = sandbox.run_code(sys.argv[1])
    grown = most_memory() - before
    after = sandbox.run_code("print('next')")
print(json.dumps({
    "grown": grown, "status": cell.status, "stdout": len(cell.stdout), "text": cell.text,
    "results": len(cell.results), "truncated": cell.truncated, "next": after.stdout,
}))
"""


def _run(code: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, code], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_what_is_printed_beyond_the_head_takes_no_memory(campaign: Campaign) -> None:
    mib = max(512, campaign.count(2048))
    told = _run(f"for _ in range({mib}): print('x' * {MIB - 1})\n7")
    assert told["grown"] < 32 * MIB
    assert (told["status"], told["stdout"], told["truncated"]) == ("ok", MIB, True)
    assert (told["text"], told["next"]) == ("7", "next\n")


@pytest.mark.parametrize("what", ["'x' * 4_000_000", "b'x' * 3_000_000"])
def test_what_is_displayed_beyond_its_bound_takes_no_memory(what: str) -> None:
    told = _run(f"for _ in range(100): display({{'image/png': {what}}}, raw=True)")
    assert told["grown"] < 256 * MIB
    assert (told["status"], told["truncated"], told["next"]) == ("ok", True, "next\n")
    assert 0 < told["results"] < 20
