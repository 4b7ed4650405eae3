"""Servers that live, and a quick way to the open sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"

NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """One row a server; an index of the sessions that are not closed; the count of versions is Alembic's from here on."""
    op.create_table(
        "servers",
        sa.Column("server", NAME, primary_key=True),
        sa.Column("seen_ns", sa.BigInteger, nullable=False),
    )
    is_open = ~sa.column("closed", sa.Boolean)
    op.create_index("sessions_open", "sessions", ["server"], sqlite_where=is_open, postgresql_where=is_open)
    op.execute("DROP TABLE IF EXISTS store_schema")
