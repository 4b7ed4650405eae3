"""Sessions, events, bodies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """The tables as version 1 made them."""
    op.create_table(
        "sessions",
        sa.Column("session", NAME, primary_key=True),
        sa.Column("dialect", sa.Text, nullable=False),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.Column("updated_ns", sa.BigInteger, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("term", sa.BigInteger, nullable=False),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("chain", sa.LargeBinary, nullable=False),
        sa.Column("closed", sa.Boolean, nullable=False),
    )
    op.create_index("sessions_by_age", "sessions", ["created_ns", "session"])
    op.create_table(
        "events",
        sa.Column("session", NAME, primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("at_ns", sa.BigInteger, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("batch_id", sa.Text),
        sa.Column("term", sa.BigInteger),
        sa.Column("chain", sa.LargeBinary),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "bodies",
        sa.Column("session", NAME, primary_key=True),
        sa.Column("digest", NAME, primary_key=True),
        sa.Column("coding", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
