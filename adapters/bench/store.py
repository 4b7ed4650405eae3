"""How long a cold server takes to go on with a long session: a server process that is up and has never seen it."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import attrs
import trio
from sqlalchemy import Connection

from adapters.bench.hour import HourMaker
from adapters.bench.own_server import ServerProcess
from adapters.bench.takeover import first_numbered
from adapters.client.credentials import ResumeCredentials
from adapters.client.trio_client import DuplexClient
from adapters.wire.projections import make_projection
from core.actors.folding import Folded, begin_fold
from core.actors.tokens import token_hash
from core.session.apply import fold
from core.session.events import Record, SessionOpened
from store.codec import Columns, decode_columns
from store.opening import open_store
from store.sql.engines import make_engines
from store.sql.pages import page_ends, read_columns
from store.sql.reading import read_head

T = TypeVar("T")

STAGE_ROUNDS = 3
TOKEN = "the bench's own"
MISSED_NUMBERS = 10
"""How many events the client has not got when its link drops: the last of the answer before, without audio."""


@attrs.frozen
class ColdResume:
    """In ms. ``resumed``: from the client's connect to ``session.resumed``; ``first_event``: to the first event that it had
    missed. The same log, taken apart in this process, in ms of CPU: ``read`` (the rows), ``decode`` (rows to records),
    ``machine`` and ``projection`` (the two folds); and ``rest``: what of ``resumed`` is none of them (the handshakes, the
    term, the attachment's commit, waiting for the database, for a thread, for a core)."""

    records: int
    resumed: float
    first_event: float
    read: float
    decode: float
    machine: float
    projection: float

    @property
    def rest(self) -> float:
        """See the class."""
        return self.resumed - self.read - self.decode - self.machine - self.projection


@asynccontextmanager
async def sqlite_url() -> AsyncIterator[str]:
    """A file of the benchmark's own, in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as folder:
        yield f"sqlite:///{Path(folder)}/log.sqlite3"


async def cold_resume(server: ServerProcess, minutes: int, session: str) -> ColdResume:
    """Put a long session into the store of ``server``, which then resumes it for a client that lacks its last events.
    Raises ClientError."""
    hour = HourMaker(session, token_hash(TOKEN), minutes)
    async with open_store(server.store_url) as store:
        await store.put_log(hour.batches)
        number = hour.projection.number - MISSED_NUMBERS
        began = trio.current_time()
        client = DuplexClient(server.url, resume=ResumeCredentials(session, TOKEN, number), reconnect=None)
        events = client.events()
        async with client:
            resumed_ms = (trio.current_time() - began) * 1e3
            await first_numbered(events)
            first_event_ms = (trio.current_time() - began) * 1e3
        stages = await _stages(server.store_url, session)  # last: the server would sweep a session that waits for it
        await store.delete(session)
    return ColdResume(hour.state.position, resumed_ms, first_event_ms, *stages)


async def _stages(url: str, session: str) -> tuple[float, float, float, float]:
    """Read, decode, machine, projection."""
    return await trio.to_thread.run_sync(_stages_in_thread, url, session)


def _stages_in_thread(url: str, session: str) -> tuple[float, float, float, float]:
    engines = make_engines(url, "full")
    gc.disable()  # a server's collector hardly ever looks, either (adapters.server.serving.settle)
    try:
        with engines.read.connect() as connection:
            read_ms, columns = _timed(lambda: _read_columns(connection, session))
        decode_ms, pages = _timed(lambda: _decode(columns))
        machine_ms, _ = _timed(lambda: fold(record for page in pages for record in page))
        both_ms, _ = _timed(lambda: _fold(pages))
    finally:
        gc.enable()
        engines.dispose()
    return read_ms, decode_ms, machine_ms, both_ms - machine_ms


def _read_columns(connection: Connection, session: str) -> list[Columns]:
    upto = read_head(connection, session).position
    found, position = list[Columns](), 0
    for last in page_ends(connection, session, 0, upto):
        columns = read_columns(connection, session, position, last)
        assert columns is not None
        found.append(columns)
        position = last
    return found


def _decode(found: list[Columns]) -> list[list[Record]]:
    pages, position = list[list[Record]](), 0
    for columns in found:
        pages.append(decode_columns(columns, position))
        position = pages[-1][-1].position
    return pages


def _fold(pages: list[list[Record]]) -> Folded:
    opened, last_ns = pages[0][0].event, pages[-1][-1].at_ns
    assert isinstance(opened, SessionOpened)
    projection = make_projection(opened.dialect, opened.projection_version)
    assert projection is not None
    folded = begin_fold(opened, projection)
    for page in pages:
        folded.take(page, last_ns)
    return folded


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    """CPU of this thread in ms, the least of a few times, and what came of it: what a stage costs, whatever else runs."""
    best_ms = float("inf")
    for _ in range(STAGE_ROUNDS):
        began = time.thread_time()
        made = work()
        best_ms = min(best_ms, (time.thread_time() - began) * 1e3)
    return best_ms, made
