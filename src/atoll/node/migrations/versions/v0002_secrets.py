"""Secrets, sealed."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "secrets",
        sql.Column("owner", sql.Text, primary_key=True),
        sql.Column("name", sql.Text, primary_key=True),
        sql.Column("binding", sql.Text, nullable=False),
        sql.Column("key", sql.Text, nullable=False),
        sql.Column("sealed", sql.Text, nullable=False),
        sql.Column("created_at", sql.Double, nullable=False),
        sql.Column("changed_at", sql.Double, nullable=False),
        sql.Column("last_used_at", sql.Double),
    )
