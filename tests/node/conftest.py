"""Engines for the tests in this folder."""

from __future__ import annotations

from tests.engine_fixtures import engine, make_engine, sandbox
from tests.node.postgres import postgres, postgres_server

__all__ = ["engine", "make_engine", "postgres", "postgres_server", "sandbox"]
