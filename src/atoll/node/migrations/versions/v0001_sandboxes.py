"""Nodes, sandboxes, executions and idempotency keys."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _make_nodes()
    _make_sandboxes()
    _make_executions()
    _make_keys()


def _make_nodes() -> None:
    op.create_table(
        "nodes",
        sql.Column("id", sql.Text, primary_key=True),
        sql.Column("settled", sql.BigInteger, nullable=False),
    )


def _make_sandboxes() -> None:
    op.create_table(
        "sandboxes",
        sql.Column("id", sql.Text, primary_key=True),
        sql.Column("node", sql.Text, sql.ForeignKey("nodes.id"), nullable=False),
        sql.Column("owner", sql.Text, nullable=False),
        sql.Column("name", sql.Text),
        sql.Column("engine", sql.Text, nullable=False),
        sql.Column("template", sql.Text, nullable=False),
        sql.Column("state", sql.Text, nullable=False),
        sql.Column("reason", sql.Text, nullable=False),
        sql.Column("labels", sql.Text, nullable=False),
        sql.Column("metadata", sql.Text, nullable=False),
        sql.Column("spec", sql.Text, nullable=False),
        sql.Column("created_at", sql.Double, nullable=False),
        sql.Column("last_active_at", sql.Double, nullable=False),
        sql.Column("ended_at", sql.Double),
        sql.Column("deadline", sql.Double),
        sql.Column("boot_id", sql.Text, nullable=False),
        sql.Column("idle_seconds", sql.Double),
        sql.Column("generation", sql.Integer, nullable=False),
        sql.Column("workspace", sql.Text),
    )
    op.create_index("sandboxes_newest", "sandboxes", ["created_at", "id"])
    op.create_index("sandboxes_of_owner", "sandboxes", ["owner", "created_at", "id"])
    op.create_index("sandboxes_ended", "sandboxes", ["node", "ended_at"])
    is_living = sql.text("ended_at IS NULL")
    op.create_index(
        "sandboxes_living_names",
        "sandboxes",
        ["node", "owner", "name"],
        unique=True,
        sqlite_where=is_living,
        postgresql_where=is_living,
    )


def _make_executions() -> None:
    op.create_table(
        "executions",
        sql.Column("id", sql.Text, primary_key=True),
        sql.Column("sandbox", sql.Text, nullable=False),
        sql.Column("owner", sql.Text, nullable=False),
        sql.Column("kind", sql.Text, nullable=False),
        sql.Column("what", sql.Text, nullable=False),
        sql.Column("book", sql.Text, nullable=False),
        sql.Column("section", sql.BigInteger, nullable=False),
        sql.Column("state", sql.Text, nullable=False),
        sql.Column("started_at", sql.Double, nullable=False),
        sql.Column("ended_at", sql.Double),
        sql.Column("outcome", sql.Text),
    )
    op.create_index("executions_newest", "executions", ["started_at", "id"])
    op.create_index("executions_of_sandbox", "executions", ["sandbox", "started_at", "id"])
    op.create_index("executions_of_owner", "executions", ["owner", "started_at", "id"])
    op.create_index("executions_in_books", "executions", ["book"])


def _make_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sql.Column("owner", sql.Text, primary_key=True),
        sql.Column("key", sql.Text, primary_key=True),
        sql.Column("method", sql.Text, nullable=False),
        sql.Column("fingerprint", sql.Text, nullable=False),
        sql.Column("answer", sql.Text),
        sql.Column("created_at", sql.Double, nullable=False),
    )
    op.create_index("idempotency_keys_oldest", "idempotency_keys", ["created_at"])
