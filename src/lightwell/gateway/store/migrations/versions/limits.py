"""Limits."""

import sqlalchemy as sql
from alembic import op

revision = "limits"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "limits",
        sql.Column("subject", sql.Text, primary_key=True),
        sql.Column("limits", sql.JSON, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("limits")
