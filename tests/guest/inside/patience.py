"""A plugin for tests that were not made for guests: an emulated machine is many times slower."""

from __future__ import annotations

import pytest

SLOWER = 10


def pytest_collection_finish(session: pytest.Session) -> None:
    # By now the suite is loaded, with its assertions rewritten.
    from atoll.engines.namespaces import sandbox
    from atoll.testing.conformance import running

    running.SOON_SECONDS *= SLOWER
    sandbox._START_SECONDS *= SLOWER
