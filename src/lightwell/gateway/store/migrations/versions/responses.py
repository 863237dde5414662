"""Kept responses."""

import sqlalchemy as sql
from alembic import op

revision = "responses"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "responses",
        sql.Column("id", sql.Text, primary_key=True),
        sql.Column("tenant", sql.Text, nullable=False, index=True),
        sql.Column("created_at", sql.Double, nullable=False, index=True),
        sql.Column("record", sql.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("responses")
