"""The event log in a database that SQLAlchemy Core speaks to: SQLite by default, PostgreSQL where several servers
share it."""
