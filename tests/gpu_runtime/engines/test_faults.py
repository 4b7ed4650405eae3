"""One lane's misfortune is its own, and what is slow does not pile up."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import attrs
import pytest

from gpu_runtime.engines.opened import PATIENCE_TOKENS
from gpu_runtime.engines.port import EngineLost, LaneError, Tokens, Unit, Window
from gpu_runtime.engines.streamed import STALL_S, StreamedLanes
from tests.gpu_runtime.engines.benches import FakeBench
from tests.gpu_runtime.engines.fake import LIMITS, FakeOptions
from tests.gpu_runtime.engines.stories import Bench, Caller


def test_an_engine_that_dies_takes_all_lanes_and_says_so() -> None:
    bench = FakeBench()

    async def story() -> None:
        lanes = bench.lanes()
        caller = Caller(bench, lanes)
        await caller.open()
        async with aclosing(lanes.feed(caller.name, Unit((Tokens((7,)),), 30))) as events:
            await anext(events)
            await bench.kill()
            with pytest.raises(EngineLost):
                async for _ in events:
                    pass
        with pytest.raises(EngineLost):
            await Caller(bench, lanes, "another").open()

    bench.run(story)


def test_slides_keep_up_with_many_lanes_that_grow() -> None:
    bench = FakeBench(FakeOptions(LIMITS, step_s=0.01, prefill_s=0.01))

    async def story() -> None:
        lanes = StreamedLanes(bench.engine, Window(high=120, low=60), slide_piece_tokens=8)
        callers = [Caller(bench, lanes, f"lane{number}", seed=50 + number) for number in range(8)]

        async def talk(caller: Caller, phase_s: float) -> None:
            await caller.open(20)
            await asyncio.sleep(phase_s)
            for _ in range(40):
                due_s = asyncio.get_running_loop().time() + 1
                answer = await caller.say(6, 5)
                assert lanes.history_tokens(caller.name) <= 160, "its slide is late"
                assert answer.end.reason == "length"
                await asyncio.sleep(max(due_s - asyncio.get_running_loop().time(), 0))

        await asyncio.gather(*(talk(caller, number / 8) for number, caller in enumerate(callers)))
        assert lanes.statistics().slid >= 8 * 4
        assert lanes.statistics().slides_waited_for == 0

    bench.run(story)


@pytest.mark.parametrize("new", [1, 5])
def test_a_poisoned_chunk_ends_one_lane_only(bench: Bench, new: int) -> None:
    """On vLLM, the logits become NaN."""

    async def story() -> None:
        lanes = bench.lanes()
        ill, well = Caller(bench, lanes, "ill", seed=16), Caller(bench, lanes, "well", seed=17)
        await ill.open()
        await well.open()
        feeding = asyncio.create_task(well.say(new=40))
        with pytest.raises(LaneError) as caught:
            await ill.feed(Unit((Tokens((bench.poison,)),), new))
        assert caught.value.code == "model_error"
        assert lanes.statistics().failed == 1
        await well.right(await feeding, new=40)
        await ill.cut(20)
        await ill.say_right()
        later = [Caller(bench, lanes, f"later{number}", seed=60 + number) for number in range(3)]
        for caller in later:  # in blocks that may have held what was no number
            await caller.open(200)
            await caller.say_right()
        await well.say_right()
        for caller in (ill, well, *later):
            await lanes.close(caller.name)
        assert lanes.statistics().kv_tokens_held == 0

    bench.run(story)


@pytest.mark.parametrize("rewinds", [False, True])
def test_an_engine_that_falls_silent_for_one_lane_ends_that_one_only(rewinds: bool) -> None:
    bench = FakeBench(FakeOptions(rewinds=rewinds))

    async def story() -> None:
        lanes = bench.lanes()
        silent, other = Caller(bench, lanes, "silent", seed=18), Caller(bench, lanes, "other", seed=19)
        await silent.open()
        await other.open()
        bench.engine.silent.add("silent")
        unit = asyncio.create_task(silent.say())
        await asyncio.sleep(1)
        await other.say_right()
        with pytest.raises(LaneError) as caught:
            await unit
        assert caught.value.code == "lane_stalled"
        assert asyncio.get_running_loop().time() < 2 * STALL_S
        assert (lanes.statistics().stalled, lanes.statistics().failed) == (1, 1)
        bench.engine.silent.clear()
        await silent.cut(20)
        await silent.say_right()
        for lane in ("silent", "other"):
            await lanes.close(lane)
        assert (lanes.statistics().kv_tokens_held, len(bench.engine.open)) == (0, 0)

    bench.run(story)


def test_a_long_prompt_beside_many_others_is_given_its_time() -> None:
    long = 10 * PATIENCE_TOKENS
    bench = FakeBench(
        FakeOptions(attrs.evolve(LIMITS, lane_tokens_max=2 * long, kv_tokens=8 * long, block_tokens=4_096))
    )

    async def story() -> None:
        lanes, slow = bench.lanes(), bench.engine
        slow.spend = lambda tokens, prompt=False: asyncio.sleep(5 * STALL_S if prompt else 0.1)  # type: ignore[method-assign]
        await lanes.open("long", [Tokens((7,) * long)])
        with pytest.raises(LaneError) as caught:
            await lanes.open("short", [Tokens((7,) * 20)])
        assert caught.value.code == "lane_stalled"

    bench.run(story)


def test_a_slide_that_falls_silent_is_given_up_and_the_lane_serves_on() -> None:
    bench = FakeBench()

    async def story() -> None:
        lanes = bench.lanes(Window(high=60, low=40))
        caller = Caller(bench, lanes, seed=21)
        await caller.open(20)
        while caller.tokens <= 60:
            await caller.say_right()
            bench.engine.silent.update({f"lane/{number}" for number in range(2, 9)})  # all but the first request
        await caller.say_right()
        await asyncio.sleep(STALL_S + 1)
        bench.engine.silent.clear()
        assert (await caller.say()).end.slid is None
        await asyncio.sleep(1)
        assert (await caller.say()).end.slid is not None
        await lanes.close(caller.name)

    bench.run(story)


CRAMPED = attrs.evolve(LIMITS, kv_tokens=256)
"""Room for two lanes of a hundred tokens, or for one of two hundred."""


def test_who_is_cancelled_while_room_is_made_for_it_leaves_no_request_open() -> None:
    bench = FakeBench(FakeOptions(CRAMPED, close_s=1.0))

    async def story() -> None:
        lanes = bench.lanes()
        idle = [Caller(bench, lanes, name, seed=70 + number) for number, name in enumerate(("one", "other"))]
        for caller in idle:
            await caller.open(100)
        big = Caller(bench, lanes, "big", seed=72)
        await big.open(200, warm=False)
        barged_in_on = asyncio.create_task(big.say())
        await asyncio.sleep(0.5)
        barged_in_on.cancel()
        await asyncio.wait({barged_in_on})
        assert lanes.statistics().parked == 2
        await asyncio.sleep(5)
        assert not bench.engine.open
        for caller in idle:
            await caller.say_right()

    bench.run(story)


def test_who_is_cancelled_while_it_closes_a_lane_gives_its_room_back() -> None:
    bench = FakeBench(FakeOptions(LIMITS, close_s=1.0))

    async def story() -> None:
        lanes = bench.lanes()
        await Caller(bench, lanes, seed=73).open(100)
        closing = asyncio.create_task(lanes.close("lane"))
        await asyncio.sleep(0.5)
        closing.cancel()
        await asyncio.wait({closing})
        assert lanes.statistics().kv_tokens_held == 0
        await lanes.close("lane")
        assert lanes.statistics().lanes_open == 0

    bench.run(story)
