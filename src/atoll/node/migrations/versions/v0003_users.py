"""Users and their tokens."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "users",
        sql.Column("id", sql.Text, primary_key=True),
        sql.Column("name", sql.Text, nullable=False),
        sql.Column("role", sql.Text, nullable=False),
        sql.Column("created_at", sql.Double, nullable=False),
        sql.Column("disabled_at", sql.Double),
        sql.Column("github", sql.Text),
    )
    op.create_table(
        "tokens",
        sql.Column("id", sql.Text, primary_key=True),
        sql.Column("user", sql.Text, nullable=False),
        sql.Column("kind", sql.Text, nullable=False),
        sql.Column("scope", sql.Text, nullable=False),
        sql.Column("name", sql.Text, nullable=False),
        sql.Column("digest", sql.Text, nullable=False),
        sql.Column("created_at", sql.Double, nullable=False),
        sql.Column("sandbox", sql.Text),
        sql.Column("parent", sql.Text),
        sql.Column("expires_at", sql.Double),
        sql.Column("last_used_at", sql.Double),
        sql.Column("revoked_at", sql.Double),
    )
