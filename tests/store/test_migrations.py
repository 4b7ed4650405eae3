"""Tables of every past version are brought up to date with all that is in them, and are then those of store.sql.schema."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text

from store.sql import engines, migrations
from store.sql.engines import make_engines
from store.sql.migrations import FOLDER, HEAD, make_tables, tables_version
from store.sql.schema import metadata
from store.sql.sql_store import open_sql_store
from store.sql.urls import parse_url
from tests.store.backends import append, empty_database, in_real_time, names, new_session, stored, whole_log, writer

BACKENDS = [name for name in names() if name != "memory"]


def execute(url: str, *statements: str) -> None:
    engine = create_engine(parse_url(url))
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_steps_lead_to_the_tables_that_the_store_uses(backend: str, tmp_path: Path) -> None:
    made = make_engines(empty_database(backend, tmp_path), "normal")
    with made.read.connect() as connection:
        assert tables_version(connection) == HEAD
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    made.dispose()
    assert differences == []


@pytest.mark.parametrize("backend", BACKENDS)
@in_real_time
async def test_tables_of_version_1_are_brought_up_to_date(backend: str, tmp_path: Path) -> None:
    """As they were before Alembic kept count: a table of its own held the version."""
    url = empty_database(backend, tmp_path)
    async with open_sql_store(url) as store:
        owner = await new_session(store)
        batch = await owner.append(bodies=(b"body",))
    execute(
        url,
        "DROP TABLE servers",
        "DROP INDEX sessions_open",
        "DROP TABLE alembic_version",
        "CREATE TABLE store_schema (version INTEGER PRIMARY KEY)",
        "INSERT INTO store_schema VALUES (1)",
    )
    async with open_sql_store(url) as store:
        assert list(await store.read("sess_1", after=2)) == await stored(store, "sess_1", batch)
        assert await store.body("sess_1", batch.bodies[0].digest) == b"body"
        await append(store, writer(store, await store.take_term("sess_1", "server-b", 1)).batch())
        assert len(await whole_log(store, "sess_1")) == 5
        assert [row.session for row in (await store.survey("server-b", 1_000)).owned] == ["sess_1"]


@pytest.mark.needs("postgresql")
def test_slow_steps_end_no_server_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers start on a slow machine: neither the step that thinks nor the one that waits for it is given up.
    Nor what is quick besides: the limits are far above that, also on a machine that has other things to do."""
    url = empty_database("postgresql", tmp_path)
    execute(url, *(f"DROP TABLE {name}" for name in (*metadata.tables, "alembic_version")))
    monkeypatch.setattr(engines, "STALLED_MS", 1_000)
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_MS", 1_000)
    upgrade = migrations._upgrade

    def think_and_upgrade(connection: Connection, version: str | None) -> None:
        time.sleep(3.0)
        upgrade(connection, version)

    monkeypatch.setattr(migrations, "_upgrade", think_and_upgrade)
    with ThreadPoolExecutor(2) as servers:
        for made in servers.map(lambda _: make_engines(url, "normal"), range(2)):
            made.dispose()


def test_the_newest_step_is_the_one_that_this_server_asks_for() -> None:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [HEAD]
    assert [step.revision for step in script.walk_revisions()] == [str(number) for number in range(int(HEAD), 0, -1)]


def test_a_step_that_fails_leaves_the_tables_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/log.sqlite3"
    execute(url, "CREATE TABLE sessions_by_age (x INTEGER)")  # the name of an index that a step wants to make

    def tables(connection: Connection) -> set[str]:
        found = connection.execute(text("SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"))
        return set(found.scalars())

    with pytest.raises(Exception, match="SQLITE"):
        make_engines(url, "normal")
    engine = create_engine(parse_url(url))
    with engine.connect() as connection:
        assert tables(connection) == {"sessions_by_age"}
        assert tables_version(connection) is None
    engine.dispose()
    execute(url, "DROP TABLE sessions_by_age")
    made = make_engines(url, "normal")
    with made.write.begin() as connection:
        make_tables(connection)
        assert tables_version(connection) == HEAD
    made.dispose()
