"""What came of short executions, beside their facts."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("executions", sql.Column("events", sql.Text, nullable=False, server_default=""))
