"""Files and batches."""

import sqlalchemy as sql
from alembic import op

revision = "batches"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "files",
        sql.Column("id", sql.Text, primary_key=True),
        sql.Column("tenant", sql.Text, nullable=False, index=True),
        sql.Column("purpose", sql.Text, nullable=False),
        sql.Column("name", sql.Text, nullable=False),
        sql.Column("bytes", sql.BigInteger, nullable=False),
        sql.Column("created_at", sql.Double, nullable=False),
        sql.Column("expires_at", sql.Double),
    )
    op.create_table(
        "file_parts",
        sql.Column("file", sql.Text, sql.ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("data", sql.LargeBinary, nullable=False),
    )
    op.create_table(
        "batches",
        sql.Column("id", sql.Text, primary_key=True),
        sql.Column("tenant", sql.Text, nullable=False, index=True),
        sql.Column("status", sql.Text, nullable=False, index=True),
        sql.Column("created_at", sql.Double, nullable=False),
        sql.Column("record", sql.LargeBinary, nullable=False),
    )
    op.create_table(
        "batch_lines",
        sql.Column("batch", sql.Text, sql.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("custom_id", sql.Text, nullable=False),
        sql.Column("body", sql.LargeBinary, nullable=False),
        sql.Column("owner", sql.Text),
        sql.Column("answer", sql.LargeBinary),
        sql.Column("succeeded", sql.Boolean),
    )
    op.create_table(
        "batch_workers",
        sql.Column("name", sql.Text, primary_key=True),
        sql.Column("alive_until", sql.Double, nullable=False),
    )


def downgrade() -> None:
    for table in ("batch_workers", "batch_lines", "batches", "file_parts", "files"):
        op.drop_table(table)
