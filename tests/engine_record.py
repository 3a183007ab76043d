"""What each engine held, as a run of the tests has seen it: kept for the table in docs/engines.md.

`./atoll test --here tests/engines/test_contract.py tests/security/test_every_engine.py --record-engines` writes it.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

RECORD = Path(__file__).parent / "security/engine_record.json"
_CONTRACT = "test_contract.py"
_ATTACKS = "test_every_engine.py"


class EngineRecorder:
    """Follows a run, and writes at its end; what did not run is as it was recorded before."""

    def __init__(self, path: Path = RECORD) -> None:
        self._path = path
        self._contract: dict[str, dict[str, int]] = {}
        self._attacks: dict[str, dict[str, str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note what came of a test that ran on an engine."""
        report = yield
        params = getattr(getattr(item, "callspec", None), "params", {})
        if "engine" in params and (report.when == "call" or report.outcome != "passed"):
            self._note(item.path.name, params, report.outcome)
        return report

    def _note(self, file: str, params: dict[str, str], outcome: str) -> None:
        engine = params["engine"]
        if file == _CONTRACT:
            counts = self._contract.setdefault(engine, {"passed": 0, "failed": 0, "skipped": 0})
            counts[outcome] += 1
        elif file == _ATTACKS:
            words = {"passed": "held", "failed": "not held", "skipped": "not tried"}
            self._attacks.setdefault(params["attack"], {})[engine] = words[outcome]

    def pytest_sessionfinish(self) -> None:
        """Keep it."""
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        record = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "kernel": platform.release(),
            "contract": {**known.get("contract", {}), **self._contract},
            "attacks": self._attacks or known.get("attacks", {}),
        }
        self._path.write_text(json.dumps(record, indent=2) + "\n")
