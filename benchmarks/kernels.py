"""`kernels`: what a session of each language costs: its first result, one more cell, and its memory when it is idle."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

from atoll import Sandbox
from atoll.errors import AtollError
from benchmarks.benchmark import Benchmark, Run
from benchmarks.figures import rounded
from benchmarks.memory import own_descendants, private_bytes, processes_since
from tools.places import say

CELLS = 50


class Session(NamedTuple):
    """A language in the template where it is at home, and a cell of it."""

    language: str
    template: str
    code: str
    is_pooled: bool = False  # taken from sandboxes that are kept ready


SESSIONS = {
    "python": Session("python", "python", "1 + 1"),
    "bash": Session("bash", "base", "true"),
    "node": Session("node", "node", "1 + 1"),
    "node pooled": Session("node", "node", "1 + 1", is_pooled=True),
    "node in python": Session("node", "python", "1 + 1"),
    "deno": Session("deno", "deno", "1 + 1"),
    "r": Session("r", "r", "1 + 1"),
    "julia": Session("julia", "julia", "1 + 1"),
}


def run(run: Run) -> Mapping[str, Any]:
    """Measure one language after the other, each as often as there are pairs."""
    parts: dict[str, Any] = {}
    for name, session in SESSIONS.items():
        say(f"sessions of {name}")
        try:
            parts[name] = {"atoll": _measure(session, run.options.pairs), "peers": {}}
        except AtollError as error:
            parts[name] = {"atoll": {}, "peers": {}, "missing": error.message}
    return {**parts["python"], "parts": parts}


def _measure(session: Session, times: int) -> Mapping[str, Any]:
    with Sandbox(template=session.template) as sandbox:  # whatever is made once is made here
        sandbox.run_code(session.code, language=session.language)
    firsts = [_first(session) for _ in range(times)]
    if session.is_pooled:
        Sandbox.warm(0, template=session.template)
    cells, memory = _live(session)
    return {
        "first_p50_ms": rounded(median(firsts) * 1000),
        "cell_p50_ms": rounded(median(cells) * 1000),
        "private_mb": rounded(memory / 1e6),
        "n": times,
    }


def _first(session: Session) -> float:
    """Return how long it takes from nothing, or from a pool that is full, to the first result."""
    if session.is_pooled:
        Sandbox.warm(1, template=session.template)
    begun = time.perf_counter()
    with Sandbox(template=session.template) as sandbox:
        sandbox.run_code(session.code, language=session.language).check()
        return time.perf_counter() - begun


def _live(session: Session) -> tuple[list[float], int]:
    """Return how long cells of a living session take, and its own memory when it is idle."""
    before = own_descendants()
    with Sandbox(template=session.template) as sandbox:
        sandbox.run_code(session.code, language=session.language).check()
        pids = processes_since(before, [sandbox.id])
        memory = private_bytes(pids)
        return [_cell(sandbox, session) for _ in range(CELLS)], memory


def _cell(sandbox: Sandbox, session: Session) -> float:
    begun = time.perf_counter()
    sandbox.run_code(session.code, language=session.language)
    return time.perf_counter() - begun


KERNELS = Benchmark("kernels", "first result, live cell and memory of a session, by language", run)
