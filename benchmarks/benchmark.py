"""What every benchmark is given and gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.atoll_side import AtollSide
from benchmarks.conditions import Conditions
from benchmarks.contest import PAIRS, Outcome
from benchmarks.report import Report
from benchmarks.targets import judge
from benchmarks.workshop import Workshop
from tools.places import locked


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asked for."""

    pairs: int = PAIRS
    live: int = 1000


@dataclass(slots=True)
class Run:
    """One run of a benchmark: what it may use, and what it notes."""

    options: Options
    workshop: Workshop
    conditions: Conditions = field(default_factory=Conditions)

    def observe(self, atoll: AtollSide) -> None:
        """Note which walls and limits are on."""
        self.conditions.add_atoll(atoll.conditions())

    def body(self, outcome: Outcome) -> dict[str, Any]:
        """Return an outcome as it stands in a report, its versions noted."""
        self.conditions.add_versions(outcome.versions)
        return outcome.as_json()


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A name, what it measures in one line, and how; `run` returns the report but for these."""

    name: str
    summary: str
    run: Callable[[Run], Mapping[str, Any]]

    def measure(self, options: Options) -> Report:
        """Run it and return the whole report; one benchmark at a time, or they would disturb each other."""
        with Workshop() as workshop, locked(workshop.place / "bench.lock", "benchmarks"):
            run = Run(options, workshop)
            body = self.run(run)
            return {
                "name": self.name,
                "summary": self.summary,
                "conditions": run.conditions.as_json(),
                **body,
                **judge(self.name, body),
            }
