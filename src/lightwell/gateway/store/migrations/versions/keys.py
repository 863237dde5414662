"""API keys."""

import sqlalchemy as sql
from alembic import op

revision = "keys"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sql.Column("id", sql.Text, primary_key=True),
        sql.Column("hash", sql.Text, nullable=False, unique=True),
        sql.Column("prefix", sql.Text, nullable=False),
        sql.Column("name", sql.Text, nullable=False),
        sql.Column("user", sql.Text, nullable=False),
        sql.Column("team", sql.Text, nullable=False),
        sql.Column("models", sql.JSON(none_as_null=True)),
        sql.Column("admin", sql.Boolean, nullable=False),
        sql.Column("truncation", sql.Text),
        sql.Column("created_at", sql.Double, nullable=False),
        sql.Column("expires_at", sql.Double),
        sql.Column("revoked_at", sql.Double),
        sql.Column("rotated_from", sql.Text),
    )


def downgrade() -> None:
    op.drop_table("api_keys")
