"""The generated part of docs/engines.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from atoll.engines.contract import Feature
from benchmarks import document, engine_table
from tests.engine_fixtures import WALLS

# Before its first import, so that its assertions show what they compared.
pytest.register_assert_rewrite("tests.security.engine_attacks")

from tests.security.engine_attacks import ATTACKS

pytestmark = pytest.mark.any_user

RECORD: Mapping[str, Any] = {
    "date": "2026-01-02",
    "kernel": "6.1",
    "contract": {
        "namespaces": {"passed": 90, "failed": 0, "skipped": 1},
        "gvisor": {"passed": 80, "failed": 2, "skipped": 0},
    },
    "attacks": {"mount": {"namespaces": "held", "gvisor": "not held"}},
}
REPORT: Mapping[str, Any] = {
    "name": "engines",
    "summary": "a sandbox of each engine",
    "conditions": {"date": "2026-01-02", "kernel": "6.1", "cpus_used": 2},
    "parts": {
        "namespaces": {"atoll": {"start_p50_ms": 3.5, "command_p50_ms": 1.25}},
        "docker/runc": {"atoll": {"start_p50_ms": 300.0}},
        "docker/runsc": {"atoll": {}, "missing": "there is none here"},
    },
}


def page() -> str:
    return engine_table.PAGE.read_text()


def test_what_is_recorded_is_shown_and_failures_stand_out() -> None:
    text = engine_table.replaced(page(), [], RECORD)
    assert "| mount | held | **not held** | not tried | not tried | not tried |" in text
    assert "| 90 | 80, **2 fail** | not run | not run | not run |" in text
    assert "As seen on 2026-01-02, Linux 6.1." in text
    assert "`./atoll bench engines --save` measures it." in text


def test_times_are_those_of_the_benchmark() -> None:
    text = engine_table.replaced(page(), [dict(REPORT)], RECORD)
    assert "| a sandbox | 3.5 | – | 300 | – | – |" in text
    assert "| a command in one that is there | 1.25 | – | – | – | – |" in text


def test_what_people_wrote_stays() -> None:
    once = engine_table.replaced(page(), [], RECORD)
    assert engine_table.replaced(once, [], RECORD) == once
    assert once.startswith("# Engines: which wall for which threat")
    assert once.endswith(page()[-200:])


def test_every_feature_that_people_use_has_its_words() -> None:
    # That one is a matter of how programs are written.
    assert set(Feature) - set(engine_table.FEATURES) == {Feature.CREATE_HERE}


def test_the_page_is_up_to_date() -> None:
    record = json.loads(engine_table.RECORD.read_text())
    assert page() == engine_table.replaced(page(), document.load(), record)


def test_every_attack_was_recorded_on_every_engine_and_held() -> None:
    record = json.loads(engine_table.RECORD.read_text())
    assert set(record["attacks"]) == set(ATTACKS)
    for attack, outcomes in record["attacks"].items():
        assert outcomes == dict.fromkeys(WALLS, "held"), attack
    assert {name for name, counts in record["contract"].items() if not counts["failed"]} == {*WALLS}
