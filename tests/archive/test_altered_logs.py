"""Whatever of a stored session is altered, lost or put elsewhere: a replay notices."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.archive.bringing_in import import_session
from adapters.archive.writing import export_session
from adapters.replay.replaying import Replay, SessionUnreadable, replay_session
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from core.ports.store import Body, Row, Store
from core.session.events import SCHEMA_VERSIONS, TAGS
from store.codec import UPCASTERS
from store.memory import MemoryDatabase, MemoryStore, no_faults
from store.opening import open_store
from store.planning import Head
from store.queueing import DEFAULT_LIMITS
from tests.archive.made_logs import VERBS, LogMaker
from tests.archive.recordings import put, record
from tests.store.backends import in_real_time, in_real_time_for

Batches = list[Any]
SOME = [
    "say",
    "commit",
    "unit",
    "unit",
    "ack",
    "cut",
    "say",
    "drop",
    "take_over",
    "come",
    "commit",
    "unit",
    "done",
    "wait",
]
LOGS = st.lists(st.sampled_from(VERBS), max_size=25)


def made(verbs: list[str]) -> MemoryDatabase:
    log, database = LogMaker(verbs), MemoryDatabase()
    database.put_log(log.batches, None)
    for body in log.bodies:
        database.put_body("made", body)
    return database


async def problem(store: Store, session: str) -> str:
    """What a replay says is wrong; empty when it is exact."""
    try:
        replay: Replay = await replay_session(store, session, make_projection, encode_caused)
    except SessionUnreadable as fault:
        return str(fault)
    if replay.mismatch is not None:
        return replay.mismatch.problem
    return "".join(fault.problem for fault in replay.bodies)


async def problem_in(database: MemoryDatabase) -> str:
    return await problem(MemoryStore(database, no_faults, DEFAULT_LIMITS), "made")


# -- alterations: each takes the log apart as it is stored, and whether it has changed anything is looked up afterwards ----


def _other(value: Any) -> Any:
    """A value of the same kind, as near as can be."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x" if not value.isdigit() else value + "1"
    if value is None:
        return "x"
    return [*value, 1] if isinstance(value, list) else {**value, "x": 1}


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for key, one in inner for leaf in _leaves(one, (*path, key)))]


def _changed_at(value: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return _other(value)
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: _changed_at(value[key], tuple(rest))}
    return [_changed_at(one, tuple(rest)) if place == key else one for place, one in enumerate(value)]


def change_a_field(row: Row, draw: Callable[[Any], Any]) -> Row:
    """One column of one row, or one place within its event."""
    column = draw(st.sampled_from([*attrs.fields_dict(Row), "body", "body"]))
    if column != "body":
        value = getattr(row, column)
        values = st.sampled_from(sorted(set(TAGS.values()) - {value})) if column == "type" else st.just(_other(value))
        return attrs.evolve(row, **{column: draw(values)})
    event = json.loads(row.body)
    return attrs.evolve(row, body=json.dumps(_changed_at(event, draw(st.sampled_from(_leaves(event))))))


def alter_record(batches: Batches, draw: Callable[[Any], Any]) -> None:
    batch = draw(st.integers(0, len(batches) - 1))
    rows = list(batches[batch].rows)
    place = draw(st.integers(0, len(rows) - 1))
    rows[place] = change_a_field(rows[place], draw)
    batches[batch] = attrs.evolve(batches[batch], rows=tuple(rows))


def alter_batch(batches: Batches, draw: Callable[[Any], Any]) -> None:
    place = draw(st.integers(0, len(batches) - 1))
    batch = batches[place]
    change = draw(
        st.sampled_from(
            [
                {"batch_id": batch.batch_id + "1"},
                {"term": batch.term + 1},
                {"term": batch.term - 1},
                {"chain": bytes(16)},
                {"chain": batch.chain[1:]},
                {"chain": bytes([1]) + batch.chain[1:]},
                {"chain": bytes([3]) + batch.chain[1:]},
                {"chain": b""},
            ]
        )
    )
    batches[place] = attrs.evolve(batch, **change)


def drop_a_record(batches: Batches, draw: Callable[[Any], Any]) -> None:
    """Also with those behind it moved up, so that no gap is left."""
    gone = draw(st.integers(1, batches[-1].position))
    close = draw(st.booleans())
    for place, batch in enumerate(list(batches)):
        rows = tuple(
            attrs.evolve(row, position=row.position - (close and row.position > gone))
            for row in batch.rows
            if row.position != gone
        )
        batches[place] = attrs.evolve(batch, rows=rows)
    batches[:] = [batch for batch in batches if batch.rows]


def swap_two_records(batches: Batches, draw: Callable[[Any], Any]) -> None:
    """Each at the other's position; ``whole``: with their times."""
    rows = [row for batch in batches for row in batch.rows]
    one, other = (rows[draw(st.integers(0, len(rows) - 1))] for _ in "ab")
    whole = draw(st.booleans())

    def put_at(row: Row, there: Row) -> Row:
        at_ns = row.at_ns if whole else there.at_ns
        return attrs.evolve(row, position=there.position, at_ns=at_ns)

    places = {one.position: put_at(other, one), other.position: put_at(one, other)}
    for place, batch in enumerate(batches):
        batches[place] = attrs.evolve(batch, rows=tuple(places.get(row.position, row) for row in batch.rows))


def cut_the_end_off(batches: Batches, draw: Callable[[Any], Any]) -> None:
    del batches[draw(st.integers(1, len(batches) - 1)) :]


def join_two_batches(batches: Batches, draw: Callable[[Any], Any]) -> None:
    place = draw(st.integers(0, len(batches) - 2))
    first, second = batches[place : place + 2]
    batches[place : place + 2] = [attrs.evolve(second, rows=(*first.rows, *second.rows))]


ALTERATIONS = (alter_record, alter_batch, drop_a_record, swap_two_records, cut_the_end_off, join_two_batches)


@given(verbs=LOGS)
@example(verbs=SOME)
async def test_a_log_that_nobody_touched_is_exact(verbs: list[str]) -> None:
    assert await problem_in(made(verbs)) == ""


@pytest.mark.parametrize("alter", ALTERATIONS)
@given(verbs=LOGS, data=st.data())
async def test_an_altered_log_is_noticed(
    alter: Callable[[Batches, Callable[[Any], Any]], None], verbs: list[str], data: st.DataObject
) -> None:
    database = made(verbs)
    batches = list(database._batches["made"])
    alter(batches, data.draw)
    altered = batches != database._batches["made"]
    database._batches["made"] = batches
    assert bool(await problem_in(database)) == altered


@given(verbs=LOGS, data=st.data())
async def test_an_altered_body_is_noticed(verbs: list[str], data: st.DataObject) -> None:
    database = made(["say", *verbs])
    key = data.draw(st.sampled_from(sorted(database._bodies)))
    content = database._bodies[key]
    place = data.draw(st.integers(0, len(content) - 1))
    for altered in (content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :], content[:-2], b""):
        database._bodies[key] = altered
        assert f"body {key[1]} is not what was stored" in await problem_in(database)
    del database._bodies[key]
    assert f"body {key[1]} is missing" in await problem_in(database)


@given(
    verbs=LOGS, column=st.sampled_from([name for name in attrs.fields_dict(Head) if name not in ("session", "epoch")])
)
async def test_an_altered_session_s_row_is_noticed(verbs: list[str], column: str) -> None:
    """Its epoch is for the store's own writes alone."""
    database = made(verbs)
    head = database._heads["made"]
    value = getattr(head, column)
    other = value[:-1] + bytes([value[-1] ^ 1]) if isinstance(value, bytes) else _other(value)
    database._heads["made"] = attrs.evolve(head, **{column: other})
    assert await problem_in(database) != ""


# -- older versions --------------------------------------------------------------------------------------------------


@given(verbs=LOGS, older=st.lists(st.booleans()))
@example(verbs=SOME, older=[True] * 100)
async def test_batches_of_an_older_server_are_checked_by_its_rule(verbs: list[str], older: list[bool]) -> None:
    """In any order: while servers are replaced one by one, old and new ones take a session over from each other."""
    log, database = LogMaker(verbs), MemoryDatabase()
    batches = log.relinked(older)
    database.put_log(batches, None)
    for body in log.bodies:
        database.put_body("made", body)
    store = MemoryStore(database, no_faults, DEFAULT_LIMITS)
    replay = await replay_session(store, "made", make_projection, encode_caused)
    assert replay.exact
    assert replay.effects_only == sum(older[: len(batches)])


async def test_the_chain_is_over_what_was_stored_and_not_over_how_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An event of an older version replays, and travels in an archive, as it is."""
    monkeypatch.setitem(SCHEMA_VERSIONS, "input_transcript", 2)
    read = lambda raw: {"item_id": raw["item"], "text": " ".join(raw["words"])}  # noqa: E731
    monkeypatch.setitem(UPCASTERS, ("input_transcript", 1), read)
    log = LogMaker(["say", "commit", "unit"])
    place, batch = next(
        (place, batch) for place, batch in enumerate(log.batches) if batch.rows[0].type == "input_transcript"
    )
    event = json.loads(batch.rows[0].body)
    body = json.dumps({"item": event["item_id"], "words": event["text"].split()})
    old = attrs.evolve(batch.rows[0], version=1, body=body)
    batches = log.relinked(rows={place: (old, *batch.rows[1:])})
    here, there = MemoryDatabase(), MemoryDatabase()
    here.put_log(batches, None)
    for one in log.bodies:
        here.put_body("made", one)
    store, other = (MemoryStore(database, no_faults, DEFAULT_LIMITS) for database in (here, there))
    assert await problem(store, "made") == ""
    await export_session(store, "made", tmp_path / "made.zip")
    assert (await import_session(other, tmp_path / "made.zip")).replay.exact
    assert list(await other.read("made")) == batches == list(await store.read("made"))
    assert await problem(other, "made") == ""
    here._batches["made"][place] = attrs.evolve(
        here._batches["made"][place], rows=(attrs.evolve(old, body=body + " "), *batch.rows[1:])
    )
    assert await problem(store, "made") == "its records are not those that were written"


# -- the same in a file ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recording() -> Any:
    return record()


@in_real_time_for(55)
async def test_an_altered_column_of_a_file_is_noticed(recording: Any, tmp_path: Path) -> None:
    """Every column of every table, of any type that SQLite lets it be."""
    path = tmp_path / "log.sqlite3"
    async with open_store(f"sqlite:///{path}") as store:
        session = await put(store, recording)
        assert await problem(store, session) == ""
    for table, where, columns in (
        ("events", "position = 20", ("position", "epoch", "at_ns", "type", "version", "body")),
        ("events", "position = (SELECT max(position) FROM events)", ("batch_id", "term", "chain")),
        ("events", "batch_id = 'created'", ("batch_id", "term", "chain")),
        ("bodies", "rowid = 3", ("digest", "coding", "size_bytes", "data")),
    ):
        for column in columns:
            for value in (f"{column} || '1'", "'?'", "x'00'", "1.5"):
                content = await trio.to_thread.run_sync(path.read_bytes)
                with sqlite3.connect(path) as connection:
                    statement = f"UPDATE {table} SET {column} = {value} WHERE {where} AND {column} IS NOT {value}"
                    changed = connection.execute(statement).rowcount
                connection.close()
                async with open_store(f"sqlite:///{path}") as store:
                    assert bool(await problem(store, session)) == bool(changed), (table, column, value)
                await trio.to_thread.run_sync(path.write_bytes, content)


@in_real_time
async def test_a_log_that_ends_within_a_batch_is_called_that(recording: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    async with open_store(f"sqlite:///{path}") as store:
        session = await put(store, recording)
    longest = max(recording[0], key=lambda batch: len(batch.records))
    first = longest.records[0].position
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM events WHERE position > ?", (first,))
    connection.close()
    async with open_store(f"sqlite:///{path}") as store:
        assert f"the log ends within a batch, which begins at position {first}" in await problem(store, session)


@in_real_time
async def test_damaged_bodies_are_named_one_by_one(recording: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    bodies: list[Body] = recording[1]
    async with open_store(f"sqlite:///{path}") as store:
        session = await put(store, recording)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE bodies SET data = zeroblob(size_bytes) WHERE rowid IN (2, 5)")
            connection.execute("DELETE FROM bodies WHERE rowid = 7")
        connection.close()
        replay = await replay_session(store, session, make_projection, encode_caused)
    spoiled = {bodies[place - 1].digest for place in (2, 5, 7)}
    assert {fault.digest for fault in replay.bodies} == spoiled
    assert sorted(fault.position for fault in replay.bodies) == [fault.position for fault in replay.bodies]
    assert replay.mismatch is None
    assert not replay.exact
