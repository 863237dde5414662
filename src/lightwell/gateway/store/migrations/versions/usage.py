"""The ledger and the price sheet."""

import sqlalchemy as sql
from alembic import op

revision = "usage"
down_revision = None

_TEXTS = ("key", "user", "team", "tenant", "model", "api", "outcome")
_INTEGERS = (
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "produced_tokens",
    "input_price",
    "cached_price",
    "output_price",
    "cost",
)


def upgrade() -> None:
    op.create_table(
        "usage",
        sql.Column("row", sql.BigInteger().with_variant(sql.Integer, "sqlite"), primary_key=True),
        sql.Column("id", sql.Text, nullable=False, index=True),
        sql.Column("at", sql.Double, nullable=False, index=True),
        *(sql.Column(name, sql.Text, nullable=False) for name in _TEXTS),
        sql.Column("batch", sql.Boolean, nullable=False),
        *(sql.Column(name, sql.BigInteger, nullable=False) for name in _INTEGERS),
        sql.Column("seconds", sql.Double, nullable=False),
        sql.Column("first_token_seconds", sql.Double),
    )
    op.create_table(
        "prices",
        sql.Column("model", sql.Text, primary_key=True),
        sql.Column("input", sql.BigInteger, nullable=False),
        sql.Column("cached_input", sql.BigInteger, nullable=False),
        sql.Column("output", sql.BigInteger, nullable=False),
        sql.Column("batch_discount", sql.Double, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("prices")
    op.drop_table("usage")
