"""What every store promises of what is read back, whatever it keeps its logs in."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from core.ports.store import SessionUnknown
from core.session.digest import body_digest
from core.session.events import Attached, InputCleared, InputTranscript, Record, SessionClosed, TokenConfirmed
from tests.store.backends import (
    OpenStore,
    append_all,
    database,
    in_real_time,
    names,
    new_session,
    whole_log,
)


@pytest.fixture(params=names())
def db(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    return database(request.param, tmp_path)


# --- bodies ---------------------------------------------------------------------------------------------------------


@in_real_time
async def test_bodies_of_every_size_come_back(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        bodies = (b"", b"\0", bytes(range(256)) * 25, b"\xff" * (1 << 20))
        await owner.append(bodies=bodies)
        for data in bodies:
            assert await store.body("sess_1", body_digest(data)) == data


@in_real_time
async def test_a_body_is_kept_once_a_session_and_never_seen_by_another(db: OpenStore) -> None:
    async with db() as store:
        owner, other = await new_session(store), await new_session(store, "sess_2")
        answers = await append_all(
            store, owner.batch(bodies=(b"same", b"same"), urgent=False), owner.batch(bodies=(b"same",)), other.batch()
        )
        assert answers == [None] * 3
        await owner.append(bodies=(b"same",))
        assert await store.body("sess_1", body_digest(b"same")) == b"same"
        for session, digest in (("sess_2", body_digest(b"same")), ("sess_1", body_digest(b"other")), ("ghost", "00")):
            with pytest.raises(KeyError):
                await store.body(session, digest)


@in_real_time
async def test_many_bodies_come_at_once_within_a_bound_and_one_at_least(db: OpenStore) -> None:
    async with db() as store:
        owner, other = await new_session(store), await new_session(store, "sess_2")
        bodies = (b"a" * 100, b"", b"b" * 200, b"c" * 5_000, b"d" * 100)
        await owner.append(bodies=bodies)
        await other.append(bodies=(b"another session's",))
        there = {body_digest(data): data for data in bodies}
        gone: dict[str, bytes | None] = dict.fromkeys((body_digest(b"another session's"), "nul\0", "\ud800"))
        asked = [*there, *gone]
        assert await store.bodies("sess_1", asked) == {**there, **gone}
        assert list(await store.bodies("sess_1", list(reversed(asked)))) == list(reversed(asked)), (
            "in the order asked for"
        )
        assert await store.bodies("sess_1", []) == {}
        counts, left = [], asked
        while left:
            found = await store.bodies("sess_1", left, limit_bytes=300)
            assert list(found) == left[: len(found)]
            counts.append(len(found))
            left = left[len(found) :]
        assert counts == [3, 1, 4]
        for unknown in ("ghost", "a\x00b", "\ud800"):
            assert await store.bodies(unknown, asked) == dict.fromkeys(asked)


# --- reading --------------------------------------------------------------------------------------------------------


@in_real_time
async def test_a_page_holds_whole_batches_up_to_its_limit_and_one_at_least(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        sizes = (1, 5, 2, 2)
        assert await append_all(store, *[owner.batch(*[InputCleared()] * size) for size in sizes]) == [None] * 4

        async def page(after: int, limit: int) -> list[int]:
            return [len(batch.records) for batch in await store.read("sess_1", after, limit)]

        assert await page(0, 10_000) == [2, 1, 5, 2, 2]
        assert await page(0, 3) == [2, 1]
        assert await page(3, 4) == [5], "one batch at least"
        assert await page(3, 1) == [5]
        assert await page(8, 3) == [2]
        assert await page(8, 4) == [2, 2]
        assert await page(12, 10) == []
        assert await page(5, 10) == [3, 2, 2], "never a record that was named as read"
        assert await page(99, 10) == []


@in_real_time
async def test_a_scan_gives_the_records_between_two_positions_whatever_batches_they_came_in(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        text = 'naïve ☕, ["日本語"] \0 \\ {}'
        batches = [owner.batch(*[InputTranscript(f"item_{n}", text)] * size) for n, size in enumerate((1, 5, 2, 2))]
        assert await append_all(store, *batches) == [None] * 4
        log = await whole_log(store, "sess_1")

        async def scanned(after: int, upto: int) -> list[Record]:
            found: list[Record] = []
            await store.scan("sess_1", after, upto, found.extend)
            return found

        assert len(log) == 12
        for after, upto in ((0, 12), (0, 1), (3, 7), (4, 12), (11, 12), (12, 12), (12, 99), (5, 99), (99, 100), (7, 3)):
            assert await scanned(after, upto) == log[after:upto], (after, upto)
        for unknown in ("sess_2", "a\x00b", "\ud800"):
            with pytest.raises(SessionUnknown):
                await store.scan(unknown, 0, 10, lambda records: None)

        class Enough(Exception):
            """What whoever scans makes of a record."""

        def take(records: object) -> None:
            raise Enough

        with pytest.raises(Enough):
            await store.scan("sess_1", 0, 12, take)
        assert await scanned(0, 2) == log[:2], "and the next one is none the worse for it"


@in_real_time
async def test_a_log_of_many_pages_is_scanned_in_order(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        small = owner.batch(*[InputTranscript(f"item_{n}", "x" * (n % 50)) for n in range(4_500)])
        large = owner.batch(*[InputTranscript(f"item_{n}", "y" * 1_000_000) for n in range(20)])
        assert await append_all(store, small, large) == [None, None]
        pages: list[list[Record]] = []
        await store.scan("sess_1", 2, 4_522, lambda records: pages.append(list(records)))
        assert [record for page in pages for record in page] == [*small.records, *large.records]


@in_real_time
async def test_the_chain_of_the_last_batch_stands_in_the_session_s_row(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        seen = set()
        for step in (owner.append, owner.append, partial(store.take_term, "sess_1", "server-b", now_ns=1)):
            await step()
            last = (await store.read("sess_1"))[-1]
            assert (await store.session("sess_1")).chain == last.chain
            seen.add(last.chain)
        assert len(seen) == 3, "each batch is a link of its own, also the store's own"


@in_real_time
async def test_seldom_events_are_picked_out_of_a_log(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        attached = [Attached(1, "first"), Attached(2, "second", 7)]
        for found in attached:
            batch = owner.batch(InputCleared(), found, InputCleared())
            assert await append_all(store, batch, owner.batch(TokenConfirmed(found.generation))) == [None] * 2
        log = [record for batch in await store.read("sess_1") for record in batch.records]
        kinds = (Attached, TokenConfirmed)
        assert await store.picked("sess_1", kinds) == [record for record in log if isinstance(record.event, kinds)]
        assert [record.event for record in await store.picked("sess_1", (Attached,))] == attached
        assert list(await store.picked("sess_1", (SessionClosed,))) == []
        for unknown in ("sess_2", "a\x00b", "\ud800"):
            with pytest.raises(SessionUnknown):
                await store.picked(unknown, kinds)


@in_real_time
async def test_sessions_are_listed_newest_first_in_pages(db: OpenStore) -> None:
    async with db() as store:
        for session, created_ns in (("b", 20), ("a", 20), ("c", 10), ("d", 30)):
            await new_session(store, session, created_ns)
        assert [row.session for row in await store.sessions()] == ["d", "b", "a", "c"]
        assert [row.session for row in await store.sessions(limit=2)] == ["d", "b"]
        assert [row.session for row in await store.sessions(limit=2, after="b")] == ["a", "c"]
        assert await store.sessions(after="c") == []
        with pytest.raises(SessionUnknown):
            await store.sessions(after="ghost")


@in_real_time
async def test_a_closed_session_is_listed_as_closed(db: OpenStore) -> None:
    async with db() as store:
        owner = await new_session(store)
        await owner.append(SessionClosed("client"))
        (row,) = await store.sessions()
        assert row.closed
        assert row == await store.session("sess_1")
