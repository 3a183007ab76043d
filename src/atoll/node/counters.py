"""What a node counts about itself, as numbers in memory and as text that Prometheus reads.

Whoever owns a node makes its `Counters`. All of it may be used in any thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

_CREATE_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_CELL_SECONDS = (0.0005, 0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)
# Should a label ever hold what a stranger chose, he cannot fill the memory with it.
_MOST_SERIES = 1000
_REST = "other"

Labels = tuple[str, ...]


class _Numbers:
    """Numbers by the values of their labels."""

    kind = ""

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self._about = about
        self._labels = tuple(labels)
        self._guard = threading.Lock()
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def value(self, *labels: str) -> float:
        """Return the number now; 0 for labels that have not been seen."""
        with self._guard:
            return self._values.get(labels, 0.0)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text format."""
        yield from _heading(self.name, self._about, self.kind)
        with self._guard:
            values = sorted(self._values.items())
        for labels, value in values:
            yield f"{self.name}{_braces(self._labels, labels)} {_number(value)}"

    def _add(self, labels: Labels, by: float) -> None:
        with self._guard:
            try:
                self._values[labels] += by
            except KeyError:
                labels = _admit(labels, self._labels, len(self._values))
                self._values[labels] = self._values.get(labels, 0.0) + by


class Counter(_Numbers):
    """A number that only grows."""

    kind = "counter"

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Count `by` more."""
        if by < 0:
            raise ValueError(f"{self.name} cannot shrink by {-by}")
        self._add(labels, by)


class Gauge(_Numbers):
    """A number that grows and shrinks."""

    kind = "gauge"

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Count `by` more, or less if it is negative."""
        self._add(labels, by)

    def set(self, value: float, *labels: str) -> None:
        """Replace the number."""
        with self._guard:
            if labels not in self._values:
                labels = _admit(labels, self._labels, len(self._values))
            self._values[labels] = value


class Histogram:
    """How often something took how long."""

    def __init__(
        self, name: str, about: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        self.name = name
        self._about = about
        self._bounds = tuple(bounds)
        self._labels = tuple(labels)
        self._guard = threading.Lock()
        self._series: dict[Labels, _Series] = {}
        if not labels:
            self._series[()] = _Series(len(bounds))

    def observe(self, value: float, *labels: str) -> None:
        """Count one that took `value`."""
        place = bisect_left(self._bounds, value)
        with self._guard:
            series = self._series.get(labels) or self._make(labels)
            series.counts[place] += 1
            series.total += value

    def count(self, *labels: str) -> int:
        """Return how many were observed."""
        with self._guard:
            series = self._series.get(labels)
            return sum(series.counts) if series else 0

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text format."""
        yield from _heading(self.name, self._about, "histogram")
        with self._guard:
            everything = [
                (labels, list(series.counts), series.total)
                for labels, series in sorted(self._series.items())
            ]
        for labels, counts, total in everything:
            yield from self._lines_of(labels, counts, total)

    def _lines_of(self, labels: Labels, counts: list[int], total: float) -> Iterator[str]:
        below = 0
        for bound, count in zip((*map(_number, self._bounds), "+Inf"), counts, strict=True):
            below += count
            braces = _braces((*self._labels, "le"), (*labels, bound))
            yield f"{self.name}_bucket{braces} {below}"
        braces = _braces(self._labels, labels)
        yield f"{self.name}_sum{braces} {_number(total)}"
        yield f"{self.name}_count{braces} {below}"

    def _make(self, labels: Labels) -> _Series:
        labels = _admit(labels, self._labels, len(self._series))
        return self._series.setdefault(labels, _Series(len(self._bounds)))


class _Series:
    """The observations with the same labels: how many up to each bound, and beyond the last."""

    __slots__ = ("counts", "total")

    def __init__(self, bounds: int) -> None:
        self.counts = [0] * (bounds + 1)
        self.total = 0.0


class Counters:
    """Everything that one node counts."""

    def __init__(self) -> None:
        self.sandboxes_created = Counter(
            "atoll_sandboxes_created_total", "Sandboxes that were handed over.", ["engine"]
        )
        self.sandboxes_destroyed = Counter(
            "atoll_sandboxes_destroyed_total", "Sandboxes that ended.", ["engine", "reason"]
        )
        self.sandboxes_lost = Counter(
            "atoll_sandboxes_lost_total", "Sandboxes that ended unasked.", ["engine", "reason"]
        )
        self.sandboxes_living = Gauge(
            "atoll_sandboxes_living", "Sandboxes that there are now.", ["engine"]
        )
        self.pool_ready = Gauge(
            "atoll_pool_ready", "Sandboxes that were made ahead and wait.", ["engine"]
        )
        self.pool_hits = Counter(
            "atoll_pool_hits_total", "Sandboxes that were made ahead and taken.", ["engine"]
        )
        self.pool_misses = Counter(
            "atoll_pool_misses_total",
            "Sandboxes that should have been ready and were not.",
            ["engine"],
        )
        self.pool_destroyed = Counter(
            "atoll_pool_destroyed_total",
            "Sandboxes that were made ahead and destroyed, untaken or for good.",
            ["engine", "reason"],
        )
        self.executions = Counter(
            "atoll_executions_total",
            "Commands, cells and terminals that ended.",
            ["kind", "outcome"],
        )
        self.create_seconds = Histogram(
            "atoll_create_seconds", "How long creating a sandbox took.", _CREATE_SECONDS, ["engine"]
        )
        self.cell_seconds = Histogram("atoll_cell_seconds", "How long cells took.", _CELL_SECONDS)
        self.egress_attempts = Counter(
            "atoll_egress_attempts_total",
            "What sandboxes tried to reach, by what came of it.",
            ["verdict"],
        )
        self.egress_bytes = Counter(
            "atoll_egress_bytes_total", "What went through the way out.", ["direction"]
        )
        self.refusals = Counter(
            "atoll_refusals_total", "Requests that were refused, by the error's code.", ["code"]
        )
        self.reports = Counter(
            "atoll_reports_total", "Warnings and errors in the log, by their event.", ["event"]
        )
        self.loop_blocked = Counter(
            "atoll_loop_blocked_total", "How often the event loop stood still."
        )
        self.store_up = Gauge("atoll_store_up", "1 while the database can be reached.")
        self.hooks_failed = Counter("atoll_hooks_failed_total", "Hooks that raised an error.")

    def render(self) -> str:
        """Return all of it in Prometheus's text format."""
        return "".join(f"{line}\n" for each in vars(self).values() for line in each.lines())


def _admit(labels: Labels, names: Labels, present: int) -> Labels:
    if len(labels) != len(names):
        raise ValueError(f"labels {labels!r} were given; what is counted has {names!r}")
    return labels if present < _MOST_SERIES else (_REST,) * len(names)


def _heading(name: str, about: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _braces(names: Labels, values: Labels) -> str:
    pairs = ",".join(
        f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)
    )
    return f"{{{pairs}}}" if pairs else ""


def _escape(text: str) -> str:
    # Half a surrogate pair could not be sent to anybody.
    text = text.encode(errors="replace").decode()
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)
