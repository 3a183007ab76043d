"""Engines for the tests in this folder."""

from __future__ import annotations

from tests.engine_fixtures import KINDS, engine_fixture, make_engine, sandbox, spare
from tests.node.postgres import postgres, postgres_server

engine = engine_fixture(KINDS)

__all__ = ["engine", "make_engine", "postgres", "postgres_server", "sandbox", "spare"]
