"""Which tokens end with the shared secret."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("tokens", sql.Column("shared_secret", sql.Text))
