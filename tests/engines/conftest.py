"""Engines and keepers for the tests in this folder."""

from __future__ import annotations

from tests.engine_fixtures import engine, make_engine, sandbox, spare
from tests.engines.namespaces.keepers import keeper

__all__ = ["engine", "keeper", "make_engine", "sandbox", "spare"]
