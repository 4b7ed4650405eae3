"""Turns to compute long prompts: who gets the next one, and that none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from gpu_runtime.engines.port import EngineLimits, Tokens, Unit, Window
from gpu_runtime.engines.prefills import NO_TURN, Prefills
from gpu_runtime.engines.streamed import StreamedLanes
from tests.gpu_runtime.engines import virtual_loop
from tests.gpu_runtime.engines.fake import FakeOptions, FakeRequests

LONG = Tokens(tuple(range(7, 207)))
LIMITS = EngineLimits(lane_tokens_max=512, kv_tokens=8_192, block_tokens=16, requests_max=16)


def play(story: Coroutine[Any, Any, None]) -> None:
    virtual_loop.run(story)


class Line:
    """Who went, in order; each takes a second for each of its pieces."""

    def __init__(self, at_once: int) -> None:
        self.prefills = Prefills(at_once)
        self.began: list[str] = []
        self.ended: list[str] = []

    async def go(self, name: str, due_ns: int, pieces: int = 1) -> None:
        turn = self.prefills.turn(due_ns)
        try:
            await self.prefills.take(turn)
            self.began.append(name)
            for _ in range(pieces):
                await turn.give_way()
                await asyncio.sleep(1)
            self.ended.append(name)
        finally:
            turn.leave()


def test_the_earliest_due_goes_next_and_of_equals_the_first_that_asked() -> None:
    async def story() -> None:
        line = Line(2)
        await asyncio.gather(*(line.go(name, due) for name, due in (("a", 9), ("b", 9), ("c", 7), ("d", 3), ("e", 3))))
        assert line.began == ["a", "b", "d", "e", "c"]

    play(story())


def test_a_long_one_gives_way_between_its_pieces_and_goes_on_afterwards() -> None:
    async def story() -> None:
        line = Line(1)
        slide = asyncio.create_task(line.go("slide", 100, pieces=4))
        await asyncio.sleep(1.5)
        await asyncio.gather(line.go("late", 200), line.go("due", 50))
        assert line.ended == ["due", "slide", "late"]
        assert asyncio.get_running_loop().time() == 6
        await slide

    play(story())


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.5, 2.5])
def test_whoever_is_cancelled_gives_its_turn_to_the_next(after_s: float) -> None:
    async def story() -> None:
        line = Line(1)
        going = [asyncio.create_task(line.go(name, due, pieces=2)) for name, due in (("a", 1), ("b", 2), ("c", 3))]
        await asyncio.sleep(after_s)
        for task in going[:2]:
            task.cancel()
        await going[2]
        assert line.ended[-1] == "c"
        await line.go("d", 4)

    play(story())


def test_a_turn_that_is_left_while_it_waits_is_waited_for_no_more() -> None:
    async def story() -> None:
        line = Line(1)
        going = asyncio.create_task(line.go("a", 1))
        await asyncio.sleep(0)
        turn = line.prefills.turn(2)
        waiting = asyncio.create_task(line.prefills.take(turn))
        await asyncio.sleep(0.1)
        turn.leave()
        await waiting
        assert asyncio.get_running_loop().time() < 1
        await going
        await line.go("b", 3)
        turn.leave()
        await line.go("c", 3)

    play(story())


def test_no_turn_is_over_before_it_begins() -> None:
    async def story() -> None:
        await Prefills(1).take(NO_TURN)
        await NO_TURN.give_way()
        NO_TURN.leave()

    play(story())


# --- lanes -------------------------------------------------------------------------------------------------------------


async def unit(lanes: StreamedLanes, lane: str, parts: tuple[Tokens, ...] = (Tokens((5, 6)),), due_ns: int = 0) -> str:
    end = ""
    async for event in lanes.feed(lane, Unit(parts, 3, due_ns=due_ns)):
        end = getattr(event, "reason", end)
    return end


def lanes_of(engine: FakeRequests, at_once: int = 1, window: Window | None = None) -> StreamedLanes:
    return StreamedLanes(engine, window, prefills_at_once=at_once)


def test_units_of_a_lane_that_the_engine_knows_wait_for_no_long_prompt() -> None:
    async def story() -> None:
        engine = FakeRequests(FakeOptions(LIMITS, prefill_s=0.1, step_s=0.01))
        lanes = lanes_of(engine)
        await lanes.open("known", [LONG])
        opening = asyncio.create_task(lanes.open("new", [Tokens(LONG.ids[::-1])]))
        await asyncio.sleep(0.1)
        began_s = asyncio.get_running_loop().time()
        await unit(lanes, "known")
        await lanes.truncate("known", 150)
        await unit(lanes, "known")
        assert asyncio.get_running_loop().time() - began_s < 5, "also after a truncation, from the prefix cache"
        assert not opening.done()
        await opening

    play(story())


def test_a_first_unit_over_a_long_history_takes_its_turn_and_leaves_it_with_its_first_token() -> None:
    async def story() -> None:
        engine = FakeRequests(FakeOptions(LIMITS, prefill_s=0.01, step_s=1.0))
        lanes = lanes_of(engine)
        for number in range(3):
            await lanes.open(f"lane{number}", [Tokens((number + 1, *LONG.ids))], warm=False)
        ends: list[str] = []

        async def first(lane: str, due_ns: int) -> None:
            await unit(lanes, lane, due_ns=due_ns)
            ends.append(lane)

        await asyncio.gather(first("lane0", 30), first("lane1", 20), first("lane2", 10))
        assert ends == ["lane0", "lane2", "lane1"], "the first that asked, then by their deadlines"
        assert asyncio.get_running_loop().time() < 3 * 6, "one prefills while another decodes"

    play(story())


@pytest.mark.parametrize("how", ["abort", "close"])
def test_a_unit_that_waits_for_its_turn_can_be_cut(how: str) -> None:
    async def story() -> None:
        engine = FakeRequests(FakeOptions(LIMITS, prefill_s=0.1, step_s=0.01))
        lanes = lanes_of(engine)
        opening = asyncio.create_task(lanes.open("first", [LONG]))
        await lanes.open("second", [Tokens(LONG.ids[::-1])], warm=False)
        feeding = asyncio.create_task(unit(lanes, "second"))
        await asyncio.sleep(1)
        await getattr(lanes, how)("second")
        assert await feeding == "aborted"
        assert not opening.done()
        await opening
        await lanes.open("third", [Tokens(LONG.ids[::-1])])

    play(story())
