"""One suite on the fake engine and on every engine that this machine can run."""

from __future__ import annotations

from atoll.testing.conformance import EngineConformance


class TestContract(EngineConformance):
    """Every engine keeps the contract."""
