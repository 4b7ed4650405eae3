"""The unit server over real lanes on the fake engine, under a clock that jumps: who runs when, who comes in, what counts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import attrs
import pytest

from gpu_runtime.engines.port import EngineLost, LaneError, Said, Tokens, Unit, UnitEnd
from gpu_runtime.engines.streamed import StreamedLanes
from gpu_runtime.scheduler.server import UnitServer, WarmUp
from gpu_runtime.scheduler.units import Refused, SchedulerOptions, UnitScheduler
from tests.gpu_runtime.engines import virtual_loop
from tests.gpu_runtime.engines.fake import FakeOptions, FakeRequests, one_shot

OPTIONS = SchedulerOptions(unit_ms=1_000, sessions_max=8, running_max=8)
PROMPT = Tokens((7, 8, 9))
UNIT = Unit((Tokens((11, 12)),), 5)


@attrs.define
class Stage:
    """A server, what is behind it, and what was said, in order of the units' ends."""

    server: UnitServer
    engine: FakeRequests
    lanes: StreamedLanes
    ended: list[str] = attrs.field(factory=list)

    @classmethod
    def make(cls, step_s: float = 0.01, **options: int | float) -> Stage:
        """``step_s``: what a token takes, so UNIT takes five of them. Call it inside the loop."""
        clock_ns = _loop().now_ns
        engine = FakeRequests(FakeOptions(step_s=step_s))
        lanes = StreamedLanes(engine, clock_ns=clock_ns)
        scheduler = UnitScheduler(attrs.evolve(OPTIONS, **options))
        return cls(UnitServer(lanes, scheduler, clock_ns), engine, lanes)

    async def open(self, *sessions: str, kv_tokens: int = 100) -> None:
        for session in sessions:
            await self.server.open(session, [PROMPT], kv_tokens=kv_tokens)

    async def unit(self, session: str, unit: Unit = UNIT) -> list[int]:
        said: list[int] = []
        async with aclosing(self.server.feed(session, unit)) as events:
            async for event in events:
                if isinstance(event, Said):
                    said.extend(event.ids)
                else:
                    assert isinstance(event, UnitEnd)
                    self.ended.append(session)
        return said

    async def refusal(self, session: str, kv_tokens: int = 100) -> str:
        with pytest.raises(LaneError) as caught:
            await self.open(session, kv_tokens=kv_tokens)
        return caught.value.code


def _loop() -> virtual_loop.VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, virtual_loop.VirtualLoop)
    return loop


def play(story: Coroutine[Any, Any, None]) -> None:
    virtual_loop.run(story)


# --- order and deadlines ----------------------------------------------------------------------------------------------


def test_the_earliest_deadline_runs_first_also_when_its_session_was_busy() -> None:
    async def story() -> None:
        stage = Stage.make(running_max=1)
        await stage.open("busy", "first", "second")
        units = []
        for session in ("busy", "first", "first", "second", "busy"):
            units.append(asyncio.create_task(stage.unit(session)))
            await asyncio.sleep(0.001)
        await asyncio.gather(*units)
        assert stage.ended == ["busy", "first", "first", "second", "busy"]

    play(story())


def test_no_more_units_run_at_once_than_may() -> None:
    async def story() -> None:
        stage = Stage.make(running_max=2)
        sessions = [f"s{number}" for number in range(5)]
        await stage.open(*sessions)
        units = asyncio.gather(*(stage.unit(session) for session in sessions))
        await asyncio.sleep(0.001)
        statistics = stage.server.statistics()
        assert (statistics.units_running, statistics.units_waiting) == (2, 3)
        await units
        assert stage.server.statistics().queue_ms_p99 == pytest.approx(100.0)

    play(story())


def test_a_late_unit_is_counted_and_heard_all_the_same() -> None:
    async def story() -> None:
        stage = Stage.make(step_s=0.3)
        await stage.open("slow")
        expected = one_shot([7, 8, 9, 11, 12], 5)
        assert await stage.unit("slow") == expected
        await stage.unit("slow", Unit((Tokens((1,)),), 1))
        statistics = stage.server.statistics()
        assert (statistics.units_done, statistics.deadline_misses) == (2, 1)

    play(story())


def test_a_session_that_falls_behind_is_told_and_others_are_not_touched() -> None:
    async def story() -> None:
        stage = Stage.make(backlog_max=2, running_max=4)
        await stage.open("behind", "other")
        units = [asyncio.create_task(stage.unit("behind")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Refused) as caught:
            await stage.unit("behind")
        assert caught.value.code == "lane_behind"
        await stage.unit("other")
        await asyncio.gather(*units)
        assert stage.ended.count("behind") == 3

    play(story())


def test_units_that_gather_start_together() -> None:
    async def story() -> None:
        stage = Stage.make(step_s=0.03, gather_ms=100, gather_from=1)
        sessions = [f"s{number}" for number in range(4)]
        await stage.open(*sessions)
        units, starts = [], []

        async def timed(session: str) -> None:
            async with aclosing(stage.server.feed(session, UNIT)) as events:
                async for event in events:
                    if isinstance(event, UnitEnd):
                        starts.append((session, dict(event.timings)["started"]))

        for session in sessions:
            units.append(asyncio.create_task(timed(session)))
            await asyncio.sleep(0.01)
        await asyncio.gather(*units)
        at = dict(starts)
        assert at["s1"] == at["s2"] == at["s3"] == at["s0"] + 100_000_000

    play(story())


# --- admission --------------------------------------------------------------------------------------------------------


def test_who_is_one_too_many_is_refused_until_somebody_leaves() -> None:
    async def story() -> None:
        stage = Stage.make(sessions_max=2)
        await stage.open("a", "b")
        assert await stage.refusal("c") == "sessions_full"
        await stage.server.close("a")
        await stage.open("c")
        assert stage.lanes.statistics().lanes_open == 2

    play(story())


def test_who_would_need_more_memory_than_there_is_is_refused() -> None:
    async def story() -> None:
        stage = Stage.make(kv_tokens=250)
        await stage.open("a", "b")
        assert await stage.refusal("c") == "kv_full"
        await stage.open("small", kv_tokens=50)

    play(story())


def test_who_would_make_units_late_is_refused_by_what_was_measured() -> None:
    async def story() -> None:
        stage = Stage.make(step_s=0.1)
        await stage.open("a")
        await stage.unit("a")  # 500 ms with one session: two would take 1,000
        assert await stage.refusal("b") == "too_slow"

    play(story())


def test_a_queued_session_comes_in_when_one_leaves_and_the_queue_is_bounded() -> None:
    async def story() -> None:
        stage = Stage.make(sessions_max=1, waiting_max=1)
        await stage.open("a")
        queued = asyncio.create_task(stage.open("b"))
        await asyncio.sleep(1)
        assert not queued.done()
        assert stage.server.statistics().sessions_waiting == 1
        assert await stage.refusal("c") == "sessions_full"
        await stage.server.close("a")
        await queued
        assert await stage.unit("b") == one_shot([7, 8, 9, 11, 12], 5)

    play(story())


def test_a_queued_session_comes_in_by_itself_when_units_have_become_quick() -> None:
    async def story() -> None:
        stage = Stage.make(step_s=0.1, waiting_max=1, measured_units=2)
        await stage.open("a")
        await stage.unit("a")
        queued = asyncio.create_task(stage.open("b"))
        await asyncio.sleep(1)
        assert not queued.done()
        for _ in range(2):
            await stage.unit("a", Unit((Tokens((1,)),), 1))
        await queued

    play(story())


def test_who_gives_up_queueing_leaves_no_trace() -> None:
    async def story() -> None:
        stage = Stage.make(sessions_max=1, waiting_max=1)
        await stage.open("a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await stage.open("b")
        assert stage.server.statistics().sessions_waiting == 0
        await stage.server.close("a")
        await stage.open("b")

    play(story())


# --- warm-up ----------------------------------------------------------------------------------------------------------


def test_a_warm_up_measures_before_anybody_is_let_in() -> None:
    async def story() -> None:
        stage = Stage.make(step_s=0.1, sessions_max=8)
        done: list[float] = []
        await stage.server.warm_up(WarmUp(sessions=4, history_tokens=40, unit=UNIT, units=3), done.append)
        assert done == sorted(done)
        assert (done[0] > 0, done[-1]) == (True, 1.0)
        assert stage.lanes.statistics().lanes_open == 0
        statistics = stage.server.statistics()
        assert (statistics.unit_ms_p50, statistics.units_done, statistics.deadline_misses) == (500.0, 0, 0)
        await stage.open("a", "b", "c", "d", "e", "f", "g")  # 500 ms with 4: 875 with 7, 1,000 with 8
        assert await stage.refusal("h") == "too_slow"

    play(story())


def test_a_warm_up_on_an_engine_that_dies_says_so() -> None:
    async def story() -> None:
        stage = Stage.make()
        stage.engine.die("no memory")
        with pytest.raises(EngineLost):
            await stage.server.warm_up(WarmUp(sessions=2, history_tokens=40, unit=UNIT), lambda _: None)

    play(story())


# --- ends -------------------------------------------------------------------------------------------------------------


def test_when_the_engine_is_lost_every_unit_ends_and_every_place_is_free() -> None:
    async def story() -> None:
        stage = Stage.make(step_s=0.1, running_max=2, sessions_max=3)
        await stage.open("a", "b", "c")
        units = asyncio.gather(*(stage.unit(session) for session in "abc"), return_exceptions=True)
        await asyncio.sleep(0.15)
        stage.engine.die("killed")
        assert [type(outcome) for outcome in await units] == [EngineLost] * 3
        statistics = stage.server.statistics()
        assert (statistics.units_running, statistics.units_waiting) == (0, 0)
        for session in "abc":
            await stage.server.close(session)
        with pytest.raises(EngineLost):
            await stage.open("d")
        assert stage.server.statistics().sessions == 0

    play(story())


def test_a_session_that_leaves_takes_its_waiting_units_with_it() -> None:
    async def story() -> None:
        stage = Stage.make(running_max=1)
        await stage.open("running", "leaving")
        running = asyncio.create_task(stage.unit("running"))
        await asyncio.sleep(0.001)
        waiting = asyncio.create_task(stage.unit("leaving"))
        await asyncio.sleep(0.001)
        await stage.server.close("leaving")
        with pytest.raises(LaneError) as caught:
            await waiting
        assert caught.value.code == "lane_unknown"
        await running
        assert stage.server.statistics().units_running == 0

    play(story())


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.025])
def test_a_listener_that_goes_away_gives_its_turn_to_the_next(after_s: float) -> None:
    async def story() -> None:
        stage = Stage.make(running_max=1)
        await stage.open("first", "second")
        first = asyncio.create_task(stage.unit("first"))
        await asyncio.sleep(after_s)
        second = asyncio.create_task(stage.unit("second"))
        await asyncio.sleep(0.001)
        first.cancel()
        assert await second == one_shot([7, 8, 9, 11, 12], 5)
        assert stage.server.statistics().units_running == 0
        assert stage.lanes.statistics().units_running == 0

    play(story())


# --- figures ----------------------------------------------------------------------------------------------------------


def test_a_snapshot_tells_all_of_it() -> None:
    async def story() -> None:
        stage = Stage.make(step_s=0.3, running_max=1)
        await stage.open("a", "b")
        await asyncio.gather(stage.unit("a"), stage.unit("b"))
        snapshot = stage.server.snapshot()
        engine, units = snapshot.engine, snapshot.units
        assert units is not None
        assert (engine.lanes_open, engine.lanes_parked, engine.units_done) == (2, 0, 2)
        assert (engine.unit_ms.count, engine.unit_ms.total_ms) == (2, pytest.approx(3_000.0))
        assert (engine.first_token_ms.count, engine.first_token_ms.total_ms) == (2, pytest.approx(600.0))
        assert (units.queue_ms.count, units.queue_ms.total_ms) == (2, pytest.approx(1_500.0))
        assert units.deadline_misses == 2
        assert engine.tokens_out == 10
        assert 0 < engine.tokens_per_s <= 1.0
        assert engine.kv_used > 0

    play(story())
