"""What the steps of a real engine are made of. Steps are counted, not timed: how quick the machine is does not matter."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from gpu_runtime.engines.port import Said, Tokens, Unit
from gpu_runtime.engines.streamed import PREFILLS_AT_ONCE, SLIDE_PIECE_TOKENS
from tests.gpu_runtime.engines.stories import Caller
from tests.gpu_runtime.engines.vllm_bench import VllmBench

pytestmark = [pytest.mark.vllm, pytest.mark.limit(wall_s=180)]

HISTORY = 900
LANES = 6
"""As many as have places, beside the one that speaks and one that nobody has."""


async def speak(caller: Caller, said: list[int]) -> None:
    """Until it is stopped."""
    async with aclosing(caller.lanes.feed(caller.name, Unit((Tokens((7, 8)),), 600))) as events:
        async for event in events:
            if isinstance(event, Said):
                said.extend(event.ids)


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_lanes_with_a_long_history_are_opened_beside_one_that_speaks_on(vllm_bench: VllmBench) -> None:
    """A worker has died: its lanes come all at once. The one that is back has its token in each step."""

    async def story() -> None:
        lanes = vllm_bench.lanes()
        speaker = Caller(vllm_bench, lanes, "speaker", seed=300)
        await speaker.open()
        said: list[int] = []
        speaking = asyncio.create_task(speak(speaker, said))
        await until(lambda: said)
        others = [Caller(vllm_bench, lanes, f"other{number}", seed=301 + number) for number in range(LANES)]
        before = len(said)
        await asyncio.gather(*(other.open(HISTORY) for other in others))
        # each step computes a piece of a few lanes; the words of a step or two may not have come yet
        steps = LANES * HISTORY // (PREFILLS_AT_ONCE * SLIDE_PIECE_TOKENS)
        assert len(said) - before >= steps - 3
        assert not speaking.done(), "it would have had nothing to say in the last steps"
        await lanes.abort("speaker")
        await speaking
        for other in others:
            await other.say_right()
        for caller in (speaker, *others):
            await lanes.close(caller.name)

    vllm_bench.run(story)
