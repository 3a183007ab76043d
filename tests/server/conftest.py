"""A real node for the tests in this folder."""

from __future__ import annotations

from tests.node_fixtures import client, node, sandbox

__all__ = ["client", "node", "sandbox"]
