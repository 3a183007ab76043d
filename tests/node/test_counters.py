"""Counters: exact from any number of threads, readable for Prometheus, bounded."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from atoll.node.counters import Counter, Counters, Gauge, Histogram

pytestmark = pytest.mark.any_user

Sample = tuple[str, tuple[tuple[str, str], ...]]


def read(text: str) -> dict[Sample, float]:
    """Return every sample as Prometheus's own parser understands it."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def lines(numbers: Counter | Gauge | Histogram) -> str:
    return "".join(f"{line}\n" for line in numbers.lines())


def in_threads(work: Callable[[], object], threads: int = 8) -> None:
    everybody = [threading.Thread(target=work) for _ in range(threads)]
    for thread in everybody:
        thread.start()
    for thread in everybody:
        thread.join()


def test_everything_a_node_counts_can_be_read() -> None:
    counters = Counters()
    counters.sandboxes_created.add("namespaces")
    counters.sandboxes_destroyed.add("namespaces", "idle", by=2)
    counters.sandboxes_living.add("namespaces", by=-1)
    counters.executions.add("cell", "ok")
    counters.create_seconds.observe(0.004, "namespaces")
    counters.store_up.set(1)
    samples = read(counters.render())
    engine = ("engine", "namespaces")
    assert samples["atoll_sandboxes_created_total", (engine,)] == 1
    assert samples["atoll_sandboxes_destroyed_total", (engine, ("reason", "idle"))] == 2
    assert samples["atoll_sandboxes_living", (engine,)] == -1
    assert samples["atoll_executions_total", (("kind", "cell"), ("outcome", "ok"))] == 1
    assert samples["atoll_create_seconds_bucket", (engine, ("le", "0.002"))] == 0
    assert samples["atoll_create_seconds_bucket", (engine, ("le", "0.005"))] == 1
    assert samples["atoll_create_seconds_bucket", (engine, ("le", "+Inf"))] == 1
    assert samples["atoll_create_seconds_sum", (engine,)] == 0.004
    assert samples["atoll_store_up", ()] == 1


def test_every_family_has_a_type_and_a_help_text() -> None:
    families = list(text_string_to_metric_families(Counters().render()))
    assert len(families) == len(vars(Counters()))
    assert {family.type for family in families} == {"counter", "gauge", "histogram"}
    assert all(family.documentation for family in families)


def test_what_never_happened_is_told_as_zero() -> None:
    samples = read(Counters().render())
    assert samples["atoll_loop_blocked_total", ()] == 0
    assert samples["atoll_cell_seconds_count", ()] == 0


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False, min_value=0))
def test_labels_and_numbers_survive_as_they_are(label: str, value: float) -> None:
    gauge = Gauge("numbers", "Numbers.", ["label"])
    gauge.set(value, label)
    # A line must not be cut where only some readers see its end.
    text = lines(gauge)
    assert text.count("\n") == 3
    if label.isprintable():
        assert read(text) == {("numbers", (("label", label),)): value}


def test_whatever_is_counted_can_be_sent() -> None:
    gauge = Gauge("numbers", "Numbers.", ["label"])
    for value, label in ((float("inf"), "\ud800"), (float("nan"), 'a"b\\c\nd')):
        gauge.set(value, label)
    samples = read(lines(gauge).encode().decode())
    assert samples["numbers", (("label", "?"),)] == float("inf")
    assert ("numbers", (("label", 'a"b\\c\nd'),)) in samples


@given(st.lists(st.floats(min_value=0, max_value=20), max_size=50))
def test_a_histogram_counts_each_value_in_every_bucket_that_holds_it(values: list[float]) -> None:
    bounds = (0.5, 1.0, 10.0)
    histogram = Histogram("seconds", "Seconds.", bounds)
    for value in values:
        histogram.observe(value)
    samples = read(lines(histogram))
    for bound in bounds:
        below = sum(value <= bound for value in values)
        assert samples["seconds_bucket", (("le", f"{bound:g}"),)] == below
    assert samples["seconds_count", ()] == histogram.count() == len(values)
    assert samples["seconds_sum", ()] == pytest.approx(sum(values))


def test_threads_lose_no_count() -> None:
    counter, histogram = Counter("a_total", "A.", ["b"]), Histogram("c", "C.", (1.0,), ["b"])

    def count() -> None:
        for number in range(5000):
            counter.add(str(number % 3))
            histogram.observe(number % 2, str(number % 3))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(count)
    finally:
        sys.setswitchinterval(interval)
    assert sum(counter.value(label) for label in "012") == 40_000
    assert sum(histogram.count(label) for label in "012") == 40_000


def test_chosen_labels_cannot_fill_the_memory() -> None:
    counter, gauge = Counter("a_total", "A.", ["b"]), Gauge("c", "C.", ["b"])
    histogram = Histogram("d", "D.", (1.0,), ["b"])
    for number in range(3000):
        counter.add(f"label {number}")
        gauge.set(number, f"label {number}")
        histogram.observe(1, f"label {number}")
    assert counter.value("other") == histogram.count("other") == 2000
    assert len(read(lines(counter))) == len(read(lines(gauge))) == 1001
    assert len(read(lines(histogram))) == 4 * 1001


def test_a_wrong_number_of_labels_is_refused() -> None:
    counters = Counters()
    with pytest.raises(ValueError, match="engine"):
        counters.sandboxes_created.add()
    with pytest.raises(ValueError, match="engine"):
        counters.create_seconds.observe(1.0, "a", "b")
    with pytest.raises(ValueError, match="labels"):
        counters.store_up.set(1, "a")


def test_a_counter_never_shrinks() -> None:
    with pytest.raises(ValueError, match="shrink"):
        Counters().loop_blocked.add(by=-1)


def test_nothing_foreign_is_loaded() -> None:
    code = "import sys, atoll.node.counters; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
