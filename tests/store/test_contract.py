"""What every store promises, whatever it keeps its logs in."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from core.ports.store import (
    Owned,
    PositionConflict,
    SessionExists,
    SessionUnknown,
    StoreBusy,
    StoredBatch,
    TermRefused,
)
from core.session.digest import CHAIN_START, NOTHING_CAUSED, body_digest
from core.session.events import (
    Commit,
    InputCleared,
    InputTranscript,
    OwnerChanged,
    Record,
    SessionClosed,
    SpeechStarted,
)
from store.codec import RecordInvalid, stored_batch
from store.queueing import QueueLimits
from tests.store.backends import (
    OpenStore,
    append,
    append_all,
    database,
    in_real_time,
    names,
    new_session,
    opened,
    stored,
    two_servers,
    whole_log,
    writer,
)


@pytest.fixture(params=names())
def db(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    return database(request.param, tmp_path)


# --- creating and owning --------------------------------------------------------------------------------------------


@in_real_time
async def test_a_new_log_opens_with_its_configuration_and_its_first_owner(db: OpenStore) -> None:
    async with db() as store:
        owned = await store.create("sess_1", "server-a", opened("sess_1"), now_ns=7)
        assert owned == Owned("sess_1", term=1, position=2)
        (batch,) = await store.read("sess_1")
        assert batch.records == (
            Record(position=1, epoch=0, at_ns=7, event=opened("sess_1")),
            Record(position=2, epoch=0, at_ns=7, event=OwnerChanged(term=1, server="server-a")),
        )
        assert batch == stored_batch("created", 1, batch.records, CHAIN_START, NOTHING_CAUSED)
        row = await store.session("sess_1")
        assert (row.dialect, row.created_ns, row.position, row.term, row.server) == ("openai", 7, 2, 1, "server-a")
        assert not row.closed


@in_real_time
async def test_a_session_is_created_once(db: OpenStore) -> None:
    async with two_servers(db) as (one, two):
        await new_session(one)
        for store in (one, two):
            with pytest.raises(SessionExists):
                await store.create("sess_1", "server-b", opened("sess_1"), now_ns=9)
        assert len(await whole_log(two, "sess_1")) == 2


@in_real_time
async def test_a_term_is_taken_together_with_its_record(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        last = await owner.append(InputCleared(), InputCleared())
        owned = await store.take_term("sess_1", "server-b", now_ns=999_999)
        assert owned == Owned("sess_1", term=2, position=5)
        (taken,) = await store.read("sess_1", after=4)
        event = OwnerChanged(term=2, server="server-b")
        assert taken.records == (Record(position=5, epoch=last.records[-1].epoch, at_ns=999_999, event=event),)
        *_, before, after = await store.read("sess_1")
        assert after == taken == stored_batch("term-2", 2, taken.records, before.chain, NOTHING_CAUSED)


@in_real_time
async def test_a_term_may_be_wanted_only_while_the_log_ends_where_it_did(db: OpenStore) -> None:
    async with two_servers(db) as (one, two):
        owner = await new_session(one)
        last = await owner.append(InputCleared())
        seen = last.records[-1].position
        await two.take_term("sess_1", "server-b", now_ns=1)
        with pytest.raises(PositionConflict):
            await one.take_term("sess_1", "server-c", now_ns=1, position=seen)
        assert (await one.session("sess_1")).position == seen + 1, "nothing was added"
        assert (await one.take_term("sess_1", "server-c", now_ns=1, position=seen + 1)).term == 3


@in_real_time
async def test_a_log_s_clock_never_runs_backwards(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store, now_ns=5_000)
        last = await owner.append()
        await store.take_term("sess_1", "server-b", now_ns=3)
        assert (await whole_log(store, "sess_1"))[-1].at_ns == last.records[-1].at_ns


@in_real_time
async def test_terms_of_many_takers_are_distinct(db: OpenStore) -> None:
    async with two_servers(db) as (one, two):
        await new_session(one)
        terms: list[int] = []

        async def take(store: object, server: str) -> None:
            terms.append((await store.take_term("sess_1", server, now_ns=1)).term)  # type: ignore[attr-defined]

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(take, (one, two)[number % 2], f"server-{number}")
        assert sorted(terms) == [2, 3, 4, 5, 6, 7]
        owners = [record.event for record in await whole_log(one, "sess_1")][1:]
        assert [event.term for event in owners if isinstance(event, OwnerChanged)] == [1, 2, 3, 4, 5, 6, 7]


@in_real_time
async def test_nobody_owns_what_is_not_there(db: OpenStore) -> None:
    async with db() as store:
        for ask in (store.take_term("ghost", "server-a", 1), store.read("ghost"), store.session("ghost")):
            with pytest.raises(SessionUnknown):
                await ask
        for name in ("nul\0", "\ud800"):
            with pytest.raises(SessionUnknown):
                await store.read(name)
            with pytest.raises(KeyError):
                await store.body(name, "0")


# --- appending ------------------------------------------------------------------------------------------------------


@in_real_time
async def test_positions_are_dense_and_batches_read_back_as_they_were(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        batches = [owner.batch(*[InputCleared()] * size, urgent=size == 3) for size in (1, 2, 3, 1)]
        assert await append_all(store, *batches) == [None] * 4
        assert list(await store.read("sess_1", after=2)) == await stored(store, "sess_1", *batches)
        assert [record.position for record in await whole_log(store, "sess_1")] == list(range(1, 10))
        row = await store.session("sess_1")
        assert (row.position, row.updated_ns) == (9, batches[-1].records[-1].at_ns)


@in_real_time
async def test_one_writer_a_stale_term_is_refused(db: OpenStore) -> None:
    async with two_servers(db) as (one, two):
        old = await new_session(one)
        await old.append()
        new = writer(two, await two.take_term("sess_1", "server-b", now_ns=1))
        for position in (old.position, new.position):
            with pytest.raises(TermRefused):
                await append(one, attrs.evolve(old, position=position).batch())
        await new.append()
        assert [batch.term for batch in await one.read("sess_1")] == [1, 1, 2, 2]


@in_real_time
async def test_a_term_that_was_not_given_out_is_refused(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        with pytest.raises(TermRefused):
            await append(store, owner.batch(term=2))


@in_real_time
async def test_a_wrong_position_is_a_conflict_and_adds_nothing(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        await owner.append(InputCleared(), InputCleared())
        for position in (0, 1, 2, 3, 5, 9):
            wrong = attrs.evolve(owner, position=position, batches=100 + position)
            with pytest.raises(PositionConflict):
                await append(store, wrong.batch(InputCleared(), InputCleared(), bodies=(b"never stored",)))
        assert len(await whole_log(store, "sess_1")) == 4
        with pytest.raises(KeyError):
            await store.body("sess_1", body_digest(b"never stored"))


@in_real_time
async def test_the_same_batch_again_is_a_success_that_adds_nothing(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        batch = owner.batch(InputCleared(), InputCleared(), bodies=(b"audio",))
        assert await append_all(store, batch, batch) == [None, None]
        await owner.append()
        await append(store, batch)
        assert len(await whole_log(store, "sess_1")) == 5
    async with db() as reopened:
        await append(reopened, batch)
        assert len(await whole_log(reopened, "sess_1")) == 5


@in_real_time
async def test_the_same_batch_again_under_a_lost_term_is_refused(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        batch = await owner.append()
        await store.take_term("sess_1", "server-b", now_ns=1)
        with pytest.raises(TermRefused):
            await append(store, batch)


@in_real_time
async def test_a_failed_batch_fails_those_behind_it_and_no_other_session(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        other = await new_session(store, "sess_2")
        good = owner.batch(urgent=False)
        bad = owner.batch(urgent=False, expected_position=owner.position + 4, records=owner.batch().records[:0])
        skipped = attrs.evolve(owner, position=owner.position + 4).batch(urgent=False)
        behind = attrs.evolve(owner, position=good.records[-1].position).batch(urgent=False)
        theirs = other.batch(urgent=True)
        with pytest.raises(RecordInvalid):
            store.append_nowait(bad, lambda error: None)
        answers = await append_all(store, good, skipped, behind, theirs)
        assert [type(answer) for answer in answers] == [type(None), PositionConflict, PositionConflict, type(None)]
        assert answers[1] is answers[2], "the one behind it would have fitted, but its writer was wrong about the log"
        # Told of the failure, a writer that folded the log anew goes on.
        await append(store, behind)
        assert len(await whole_log(store, "sess_1")) == 4


@in_real_time
async def test_what_no_log_can_hold_is_refused_before_it_is_queued(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        gap = (Record(3, 0, 1, InputCleared()), Record(5, 0, 1, InputCleared()))
        for changes in ({"records": ()}, {"records": gap}, {"batch_id": "nul\0"}):
            bad = attrs.evolve(owner, position=2).batch(**changes)
            with pytest.raises(RecordInvalid):
                store.append_nowait(bad, lambda error: None)
        with pytest.raises(RecordInvalid):
            store.append_nowait(owner.batch(InputTranscript("item", "\ud800")), lambda error: None)
        with pytest.raises(RecordInvalid):
            await store.create("sess\0", "server-a", opened("sess"), 1)
        assert store.statistics().queue_items == 0


@in_real_time
async def test_unicode_comes_back(db: OpenStore) -> None:
    text = "naïve ☕ \U0001f9ff 日本語 \u202e \0 \" \\ \n '; DROP TABLE events; --"
    async with db() as store:
        owner = await new_session(store, "sess_日本")
        batch = await owner.append(
            InputTranscript("item_é", text), Commit("item", "client", 0, 1, True, True, event_id=text)
        )
        assert list(await store.read("sess_日本", after=2)) == await stored(store, "sess_日本", batch)
        assert (await store.session("sess_日本")).session == "sess_日本"


# --- the queue ------------------------------------------------------------------------------------------------------


@in_real_time
async def test_a_full_queue_refuses_and_queues_nothing(db: OpenStore) -> None:
    async with db(QueueLimits(items_max=3)) as store:
        owner, other = await new_session(store), await new_session(store, "sess_2")
        batches = [owner.batch(urgent=False) for _ in range(3)]
        answers: list[object] = []
        for batch in batches:
            store.append_nowait(batch, answers.append)
        refused = other.batch()
        with pytest.raises(StoreBusy):
            store.append_nowait(refused, answers.append)
        assert store.statistics().queue_items == 3
        while len(answers) < 3:
            await trio.sleep(0.002)
        assert answers == [None] * 3
        statistics = store.statistics()
        assert (statistics.queue_items, statistics.queue_bytes, statistics.appended_batches) == (0, 0, 3)
        await append(store, refused)


@in_real_time
async def test_a_flood_of_one_session_refuses_nothing_of_another(db: OpenStore) -> None:
    async with db(QueueLimits(session_bytes_max=100_000)) as store:
        owner, other = await new_session(store), await new_session(store, "sess_2")
        flood = [owner.batch(InputCleared(), bodies=(bytes([number]) * 60_000,), urgent=False) for number in range(2)]
        store.append_nowait(flood[0], lambda error: None)
        with pytest.raises(StoreBusy):
            store.append_nowait(flood[1], lambda error: None)
        await other.append(SpeechStarted(1, 0, "item"))
        await append(store, flood[1])


@in_real_time
async def test_one_item_fits_an_empty_queue_however_big_it_is(db: OpenStore) -> None:
    async with db(QueueLimits(bytes_max=10, session_bytes_max=10)) as store:
        owner = await new_session(store)
        await owner.append(bodies=(b"x" * 1_000,))


@in_real_time
async def test_closing_writes_what_is_queued(db: OpenStore) -> None:
    answers: list[object] = []
    async with db() as store:
        owner = await new_session(store)
        for _ in range(20):
            store.append_nowait(owner.batch(urgent=False), answers.append)
    assert answers == [None] * 20
    with pytest.raises(StoreBusy):
        store.append_nowait(owner.batch(), answers.append)
    async with db() as reopened:
        assert len(await whole_log(reopened, "sess_1")) == 22


@in_real_time
async def test_two_servers_write_to_one_database(db: OpenStore) -> None:
    async with two_servers(db) as servers:
        owners = [await new_session(servers[number % 2], f"sess_{number}") for number in range(8)]
        logs: dict[str, list[StoredBatch]] = {}

        async def talk(number: int) -> None:
            owner = owners[number]
            batches = [await owner.append(SpeechStarted(turn, turn, "item")) for turn in range(5)]
            logs[owner.session] = await stored(owner.store, owner.session, *batches)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(talk, number)
        for session, log in logs.items():
            assert list(await servers[0].read(session, after=2)) == log


# --- servers --------------------------------------------------------------------------------------------------------

EXPIRY_MS = 60_000


@in_real_time
async def test_a_survey_tells_a_server_its_own_sessions_and_those_that_nobody_owns(db: OpenStore) -> None:
    async with two_servers(db) as (one, two):
        await new_session(one, "sess_1", now_ns=2)
        await one.create("sess_2", "server-b", opened("sess_2"), now_ns=3)
        ended = await new_session(one, "sess_3")
        await ended.append(SessionClosed("over"))
        seen = await one.survey("server-a", EXPIRY_MS)
        assert [row.session for row in seen.owned] == ["sess_1"]
        assert [row.session for row in seen.ownerless] == ["sess_2"], "server-b has never said a word"
        seen = await two.survey("server-b", EXPIRY_MS)
        assert ([row.session for row in seen.owned], seen.ownerless) == (["sess_2"], ())
        await two.take_term("sess_1", "server-b", now_ns=1)
        seen = await one.survey("server-a", EXPIRY_MS)
        assert (seen.owned, seen.ownerless) == ((), ())
        assert {row.session: row.term for row in (await two.survey("server-b", EXPIRY_MS)).owned} == {
            "sess_1": 2,
            "sess_2": 1,
        }


@in_real_time
async def test_a_server_that_says_goodbye_or_falls_silent_leaves_its_sessions_to_the_others(db: OpenStore) -> None:
    async with two_servers(db) as (one, two):
        await new_session(one)
        await one.survey("server-a", EXPIRY_MS)
        assert (await two.survey("server-b", EXPIRY_MS)).ownerless == ()
        await trio.sleep(0.05)
        assert [row.session for row in (await two.survey("server-b", 20)).ownerless] == ["sess_1"], "silent for 20 ms"
        await one.release("server-a")
        assert [row.session for row in (await two.survey("server-b", EXPIRY_MS)).ownerless] == ["sess_1"]


@in_real_time
async def test_the_clock_is_the_store_s(db: OpenStore) -> None:
    async with two_servers(db) as (one, two):
        await new_session(one)
        first = await one.survey("server-a", EXPIRY_MS)
        await trio.sleep(0.01)
        second = await two.survey("server-b", EXPIRY_MS)
        assert 0 < second.now_ns - first.now_ns < 25e9


@pytest.mark.parametrize("backend", [name for name in names() if name != "sqlite"])
@in_real_time
async def test_a_term_that_another_server_takes_is_told(backend: str, tmp_path: Path) -> None:
    async with two_servers(database(backend, tmp_path)) as (one, two):
        told: list[tuple[str, int]] = []
        await new_session(one)
        one.watch_terms(lambda session, term: told.append((session, term)))
        await trio.sleep(0.2)  # PostgreSQL tells those who listen, from when they do
        with trio.fail_after(20):
            term = 1
            while not told:
                term = (await two.take_term("sess_1", "server-b", now_ns=1)).term
                await trio.sleep(0.05)
        assert told[-1][0] == "sess_1"
        assert 1 < told[-1][1] <= term
