"""Fixtures for tests of whole programs."""

from __future__ import annotations

from tests.node.postgres import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]
