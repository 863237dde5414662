"""Stored instructions."""

import sqlalchemy as sql
from alembic import op

revision = "instructions"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "instructions",
        sql.Column("subject", sql.Text, primary_key=True),
        sql.Column("text", sql.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("instructions")
