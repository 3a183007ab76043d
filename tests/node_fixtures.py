"""A node for many tests, and a client and a sandbox on it for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from atoll.client.http import HttpNode
from tests.cli.conftest import why_not
from tests.running_node import RunningNode, running_node


@pytest.fixture(scope="session")
def node() -> Iterator[RunningNode]:
    """A node that many tests use."""
    if reason := why_not("namespaces"):
        pytest.skip(f"engine namespaces does not work here: {reason}")
    with running_node() as node:
        yield node
        assert not [each for each in node.events() if each["event"] == "request.failed"]


@pytest.fixture
async def client(node: RunningNode) -> AsyncIterator[HttpNode]:
    """A client of that node."""
    async with node.client() as client:
        yield client


@pytest.fixture
async def sandbox(client: HttpNode) -> AsyncIterator[str]:
    """The id of a sandbox that a test may spoil."""
    made = await client.call("POST", "/sandboxes", body={"template": "base"})
    yield made["id"]
    await client.call("DELETE", f"/sandboxes/{made['id']}")
