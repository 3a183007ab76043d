"""An engine in memory, without any isolation: for tests of everything that is built on engines."""

from __future__ import annotations

from atoll.testing.fake.engine import FakeEngine
from atoll.testing.fake.processes import InnerProcess, Program

__all__ = ["FakeEngine", "InnerProcess", "Program"]
