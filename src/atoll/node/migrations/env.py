"""Runs the steps in the transaction that `store` has begun; alembic loads it by its name."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
context.run_migrations()
