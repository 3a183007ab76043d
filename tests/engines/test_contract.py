"""One suite on the fake engine and on every engine that this machine can run."""

from __future__ import annotations

import pytest

from atoll.testing.conformance import EngineConformance

pytestmark = pytest.mark.contract


class TestContract(EngineConformance):
    """Every engine keeps the contract."""
