"""The memory store's own promises: virtual time, scripted faults, and what a crash leaves."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from core.ports.store import Batch, PositionConflict, StoreError, StoreFailed, TermRefused
from store.memory import NO_FAULT, Fault, MemoryDatabase, open_memory_store
from store.planning import AppendBatch, Request
from tests.store.backends import append, append_all, new_session, stored, writer


def on_batch(number: int, fault: Fault) -> object:
    """The policy that strikes the ``number``-th batch (from 1)."""
    seen = 0

    def policy(request: Request) -> Fault:
        nonlocal seen
        seen += isinstance(request, AppendBatch)
        return fault if isinstance(request, AppendBatch) and seen == number else NO_FAULT

    return policy


async def test_done_comes_later_and_takes_no_time_by_itself() -> None:
    async with open_memory_store() as store:
        owner = await new_session(store)
        started = trio.current_time()
        answers: list[object] = []
        store.append_nowait(owner.batch(), answers.append)
        assert answers == []
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [None]
        assert trio.current_time() == started


async def test_delays_are_virtual_and_keep_the_order() -> None:
    async with open_memory_store(policy=lambda request: Fault(before_s=2.0, after_s=1.0)) as store:
        owner = await new_session(store)
        assert trio.current_time() == pytest.approx(3.0, abs=1e-6)
        done_at: list[float] = []
        for _ in range(3):
            store.append_nowait(owner.batch(), lambda error: done_at.append(trio.current_time()))
        await trio.sleep(100)
        assert done_at == pytest.approx([6.0, 9.0, 12.0])


async def test_a_batch_is_durable_before_it_is_answered() -> None:
    async with open_memory_store() as store:
        owner = await new_session(store)
        store.policy = lambda request: Fault(before_s=1.0, after_s=1.0)
        answers: list[object] = []
        store.append_nowait(owner.batch(), answers.append)
        for at_s, durable, answered in ((0.5, 2, 0), (1.5, 3, 0), (2.5, 3, 1)):
            await trio.sleep(at_s - (trio.current_time() % 10))
            assert (len(store.database.records("sess_1")), len(answers)) == (durable, answered)


async def test_a_failed_append_is_not_in_the_log_and_fails_those_behind() -> None:
    async with open_memory_store() as store:
        owner = await new_session(store)
        store.policy = on_batch(2, Fault(before_s=1.0, fail_before=True))  # type: ignore[assignment]
        batches = [owner.batch() for _ in range(4)]
        answers = await append_all(store, *batches)
        assert [type(answer) for answer in answers] == [type(None), StoreFailed, StoreFailed, StoreFailed]
        assert len(store.database.records("sess_1")) == 3
        await append(store, batches[1])


async def test_an_unknown_result_is_settled_by_the_same_batch_again() -> None:
    async with open_memory_store() as store:
        owner = await new_session(store)
        store.policy = on_batch(1, Fault(fail_after=True))  # type: ignore[assignment]
        batch = owner.batch()
        with pytest.raises(StoreFailed):
            await append(store, batch)
        assert list(await store.read("sess_1", after=2)) == await stored(store, "sess_1", batch)
        await append(store, batch)
        assert list(await store.read("sess_1", after=2)) == await stored(store, "sess_1", batch)


async def test_a_crash_loses_what_is_queued_and_nothing_else() -> None:
    database = MemoryDatabase()
    answers: list[object] = []
    with trio.move_on_after(2.5):
        async with open_memory_store(database) as store:
            owner = await new_session(store)
            store.policy = lambda request: Fault(before_s=1.0)
            for _ in range(5):
                store.append_nowait(owner.batch(), answers.append)
            await trio.sleep_forever()
    assert answers == [None, None]
    await trio.sleep(10)
    assert answers == [None, None], "the dead do not answer"
    assert len(database.records("sess_1")) == 4
    async with open_memory_store(database) as second:
        successor = writer(second, await second.take_term("sess_1", "server-b", 1))
        await successor.append()
        assert len(database.records("sess_1")) == 6


async def test_an_owner_on_another_server_is_refused() -> None:
    database = MemoryDatabase()
    async with open_memory_store(database) as one, open_memory_store(database) as two:
        old = await new_session(one)
        one.policy = lambda request: Fault(before_s=1.0)
        on_its_way = old.batch()
        answers: list[StoreError | None] = []
        one.append_nowait(on_its_way, answers.append)
        await two.take_term("sess_1", "server-b", 1)
        await trio.sleep(2)
        assert [type(answer) for answer in answers] == [TermRefused]


FAULTS = st.builds(
    Fault,
    before_s=st.sampled_from([0.0, 0.5]),
    after_s=st.sampled_from([0.0, 0.5]),
    fail_before=st.booleans(),
    fail_after=st.booleans(),
)


@given(faults=st.lists(FAULTS, min_size=1, max_size=8))
async def test_whatever_fails_a_writer_that_settles_gets_every_batch_in_once(faults: list[Fault]) -> None:
    script = iter(faults)
    async with open_memory_store() as store:
        owner = await new_session(store)
        store.policy = lambda request: next(script, NO_FAULT)
        batches = [owner.batch() for _ in range(6)]
        missing: list[Batch] = batches
        while missing:
            answers = await append_all(store, *missing)
            assert not any(isinstance(answer, PositionConflict) for answer in answers)
            firm = next((number for number, answer in enumerate(answers) if answer is not None), len(answers))
            assert all(answer is not None for answer in answers[firm:]), "one got in behind one that failed"
            missing = missing[firm:]
        assert list(await store.read("sess_1", after=2)) == await stored(store, "sess_1", *batches)
