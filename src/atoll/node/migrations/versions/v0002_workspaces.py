"""Workspaces that outlive their sandboxes."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "workspaces",
        sql.Column("id", sql.Text, primary_key=True),
        sql.Column("owner", sql.Text, nullable=False),
        sql.Column("created_at", sql.Double, nullable=False),
        sql.Column("last_used_at", sql.Double, nullable=False),
        sql.Column("bytes_used", sql.BigInteger, nullable=False),
        sql.Column("sandbox", sql.Text),
    )
    op.create_index("workspaces_of_owner", "workspaces", ["owner", "created_at", "id"])
