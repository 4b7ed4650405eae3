"""The unit server over a stand-in for an engine: places are given back, however opening fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from gpu_runtime.engines.port import EngineLost, LaneEngine, LaneError, Tokens
from gpu_runtime.scheduler.server import UnitServer
from gpu_runtime.scheduler.units import SchedulerOptions, UnitScheduler


class Opens:
    """An engine of which only opening and closing are asked."""

    def __init__(self, fail: Callable[[], BaseException] | None = None) -> None:
        self.fail = fail
        self.hold = False
        self.lanes: set[str] = set()

    async def open(self, lane: str, *rest: object, **named: object) -> None:
        if self.fail is not None:
            raise self.fail()
        self.lanes.add(lane)
        while self.hold:
            await asyncio.sleep(0.01)

    async def close(self, lane: str) -> None:
        self.lanes.discard(lane)


def served(engine: Opens) -> UnitServer:
    return UnitServer(
        cast(LaneEngine, engine), UnitScheduler(SchedulerOptions(unit_ms=1_000, sessions_max=1, running_max=1))
    )


async def opened(server: UnitServer, session: str) -> None:
    await server.open(session, [Tokens((1,))], kv_tokens=10)


@pytest.mark.parametrize(
    "fault", [EngineLost("gone"), LaneError("bad_unit", "no")], ids=lambda fault: type(fault).__name__
)
def test_a_lane_that_cannot_be_opened_takes_no_place(fault: Any) -> None:
    async def story() -> None:
        engine = Opens(lambda: fault)
        server = served(engine)
        with pytest.raises(type(fault)):
            await opened(server, "first")
        engine.fail = None
        await opened(server, "second")
        assert engine.lanes == {"second"}

    asyncio.run(story())


def test_an_opening_that_is_cancelled_takes_no_place_and_leaves_no_lane() -> None:
    async def story() -> None:
        engine = Opens()
        engine.hold = True
        server = served(engine)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await opened(server, "first")
        assert not engine.lanes
        engine.hold = False
        await opened(server, "second")

    asyncio.run(story())


def test_a_place_may_be_held_without_a_lane() -> None:
    """For those who keep lanes longer than they feed them: a chat, between two answers."""

    async def story() -> None:
        engine = Opens()
        server = served(engine)
        await server.admit("first", kv_tokens=10)
        with pytest.raises(LaneError) as caught:
            await server.admit("second", kv_tokens=10)
        assert caught.value.code == "sessions_full"
        server.leave("first")
        await server.admit("second", kv_tokens=10)
        server.leave("nobody")
        assert not engine.lanes

    asyncio.run(story())
