"""The store's benchmark measures what it says: the load is what actors write, and a resume is one by a real server."""

from __future__ import annotations

import pytest

from adapters.bench.appends import CYCLE, measure_appends
from adapters.bench.own_server import own_server
from adapters.bench.store import cold_resume, sqlite_url
from core.session import events as e
from core.session.digest import body_digest
from store.memory import Fault, MemoryDatabase, open_memory_store


@pytest.mark.parametrize("audio", [True, False])
async def test_the_load_is_what_actors_write_at_the_rate_that_was_asked(audio: bool) -> None:
    database = MemoryDatabase()
    async with open_memory_store(database) as store:
        measured = await measure_appends(store, sessions=3, seconds=2.0, audio=audio, seed=7)
    assert (measured.sessions, measured.batches, measured.reached) == (3, 3 * CYCLE, 1.0)
    assert len(measured.patient_ms) == 3 * 11, "ten chunks of audio and an acknowledgement in each cycle"
    sessions = [head.session for head in database.heads()]
    assert len(sessions) == 3
    for session in sessions:
        events = [record.event for record in database.records(session)][2:]
        assert sum(isinstance(event, e.Append) for event in events) == 10
        assert sum(isinstance(event, e.Output) for event in events) == 8
        for event in events:
            if isinstance(event, e.Append | e.Output):
                _check_body(database, session, event, audio)


async def test_a_store_that_is_slow_shows_in_the_latencies_and_in_the_rate() -> None:
    async with open_memory_store(policy=lambda request: Fault(before_s=0.3)) as store:
        measured = await measure_appends(store, sessions=1, seconds=2.0)
    assert measured.reached == pytest.approx(1 / 3, rel=0.1), "ten a second were asked, three are written"
    assert max(measured.waited_ms) > 3_000, "what queues behind others is late from when it was due"


@pytest.mark.realtime
async def test_a_cold_server_s_resume_is_measured_to_the_first_event_that_was_missed() -> None:
    async with sqlite_url() as url, own_server("scripted", {}, store_url=url) as server:
        measured = await cold_resume(server, 2, "duplex-bench-1")
    assert measured.records > 500
    assert measured.first_event > measured.resumed > 0
    assert min(measured.read, measured.decode, measured.machine) > 0


def _check_body(database: MemoryDatabase, session: str, event: e.Append | e.Output, audio: bool) -> None:
    if audio:
        data = database.body(session, event.digest)
        assert (len(data), body_digest(data)) == (event.size_bytes, event.digest)
    else:
        with pytest.raises(KeyError):
            database.body(session, event.digest)
