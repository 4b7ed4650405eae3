"""The store by itself: append latency under many sessions, and how long a cold server takes to go on with a session."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from adapters.bench.hour import HourMaker
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from core.actors.ports import Ports, Watch
from core.actors.supervisor import open_supervisor, token_hash
from core.ports import runtime as rt
from store.measure import AppendLatency, measure_appends
from store.opening import open_store

TOKEN = "the bench's own"


@attrs.frozen
class ColdResume:
    """``ms``: from the question to a session that lives; ``records``: of its log."""

    ms: float
    records: int


class NoRuntime:
    """A runtime that is never up."""

    capabilities: rt.Capabilities | None = None

    def capabilities_of(self, session: str) -> rt.Capabilities | None:
        """None."""
        return None

    def subscribe(self, session: str, sink: rt.RuntimeSink) -> None:
        """Nothing comes."""

    def unsubscribe(self, session: str, sink: rt.RuntimeSink) -> None:
        """Nothing came."""

    def send(self, message: rt.ToRuntime) -> None:
        """Lost."""

    def statistics(self) -> rt.RuntimeStatistics:
        """Nothing."""
        return rt.RuntimeStatistics(up=False, restarts=0, sessions=0, queue_items=0, queue_bytes=0)


@asynccontextmanager
async def sqlite_url() -> AsyncIterator[str]:
    """A file of the benchmark's own, in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as folder:
        yield f"sqlite:///{Path(folder)}/log.sqlite3"


async def appends(url: str, sessions: int, seconds: float) -> AppendLatency:
    """Ten events a second in each of ``sessions``."""
    async with open_store(url) as store:
        return await measure_appends(store, sessions, seconds)


async def cold_resume(url: str, minutes: int, session: str) -> ColdResume:
    """Put a long session into the store at ``url``, close it, and resume the session on a server that has never seen it."""
    hour = HourMaker(session, token_hash(TOKEN), minutes)
    async with open_store(url) as store:
        await store.put_log(hour.batches)
    async with open_store(url) as store:
        ports = Ports(store, NoRuntime(), time.time_ns, encode_caused, Watch())
        async with open_supervisor(ports, server_id="bench", make_projection=make_projection) as supervisor:
            began = trio.current_time()
            await supervisor.resume(session, TOKEN, hour.projection.number)
            ms = (trio.current_time() - began) * 1e3
        await store.delete(session)
    return ColdResume(ms, hour.state.position)
