"""vLLM's engine process is killed: every lane is told, and goes on from its history on a new one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from gpu_runtime.engines.port import EngineLost, Said, Tokens, Unit
from tests.gpu_runtime.engines.stories import Caller
from tests.gpu_runtime.engines.vllm_bench import VllmBench

pytestmark = [pytest.mark.vllm, pytest.mark.crash, pytest.mark.soak, pytest.mark.limit(wall_s=1_500)]


def test_a_killed_engine_is_lost_and_its_lanes_go_on_on_the_next(tiny_model: Path) -> None:
    first = VllmBench(tiny_model)
    callers: list[Caller] = []

    async def until_it_is_killed() -> None:
        lanes = first.lanes()
        callers.extend(Caller(first, lanes, f"lane{number}", seed=80 + number) for number in range(3))
        for caller in callers:
            await caller.open(40)
            await caller.say_right(embedded=True)
        speaking = asyncio.Event()

        async def cut_short(caller: Caller) -> None:
            async with aclosing(lanes.feed(caller.name, Unit((Tokens((7, 8)),), 400))) as events:
                async for event in events:
                    if isinstance(event, Said):
                        speaking.set()

        units = [asyncio.create_task(cut_short(caller)) for caller in callers[:2]]
        await speaking.wait()
        await first.kill()
        outcomes = await asyncio.gather(*units, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [EngineLost] * 2
        with pytest.raises(EngineLost):  # the one that was idle
            await callers[2].say()
        with pytest.raises(EngineLost):
            await lanes.open("new", [Tokens((1, 2))])
        await lanes.shutdown()

    first.run(until_it_is_killed)
    second = VllmBench(tiny_model)

    async def on_the_next() -> None:
        lanes = second.lanes()
        for old in callers:
            caller = Caller(second, lanes, old.name, seed=90, history=list(old.history))
            await lanes.open(caller.name, caller.history)
            await caller.say_right()
            await caller.cut(45)
            await caller.say_right()

    second.run(on_the_next)
    second.close()
