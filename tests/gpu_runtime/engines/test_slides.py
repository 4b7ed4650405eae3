"""Slides beside units: how much of them a step of the engine may get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import attrs

from gpu_runtime.engines.port import Part, Window
from gpu_runtime.engines.requests import PREFILL, Piece, Sampling
from gpu_runtime.engines.streamed import PREFILLS_AT_ONCE, SLIDE_PIECE_TOKENS, StreamedLanes
from tests.gpu_runtime.engines.benches import FakeBench
from tests.gpu_runtime.engines.fake import LIMITS, FakeOptions, FakeRequest, FakeRequests
from tests.gpu_runtime.engines.stories import Caller

LANES = 12
ROOMY = attrs.evolve(LIMITS, kv_tokens=16_384, requests_max=3 * LANES, lane_tokens_max=512)


class Computed:
    """What a request engine computes of prompts, at each moment: the most of it."""

    def __init__(self, engine: FakeRequests) -> None:
        self._make = engine.request
        self.now: list[int] = []
        self.most_tokens = self.most_requests = 0

    def request(self, name: str) -> FakeRequest:
        made = self._make(name)
        push = made.push

        async def watched(
            parts: Sequence[Part], sampling: Sampling, keep_tokens: int | None = None
        ) -> AsyncGenerator[Piece, None]:
            tokens = sum(map(len, parts)) if sampling == PREFILL else 0
            if tokens:
                self.now.append(tokens)
                self.most_tokens = max(self.most_tokens, sum(self.now))
                self.most_requests = max(self.most_requests, len(self.now))
            try:
                async for piece in push(parts, sampling, keep_tokens):
                    yield piece
            finally:
                if tokens:
                    self.now.remove(tokens)

        made.push = watched  # type: ignore[method-assign]
        return made


def test_lanes_that_slide_at_one_time_leave_each_step_to_the_units() -> None:
    bench = FakeBench(FakeOptions(ROOMY, step_s=0.01, prefill_s=0.0005))

    async def story() -> None:
        lanes = StreamedLanes(bench.engine, Window(high=300, low=250))
        callers = [Caller(bench, lanes, f"lane{number}", seed=80 + number) for number in range(LANES)]
        for caller in callers:
            await caller.open(20)
        computed = Computed(bench.engine)
        bench.engine.request = computed.request  # type: ignore[method-assign]

        async def talk(caller: Caller) -> None:
            for _ in range(40):
                due_s = asyncio.get_running_loop().time() + 0.5
                await caller.say(6, 5)
                await asyncio.sleep(max(due_s - asyncio.get_running_loop().time(), 0))

        await asyncio.gather(*map(talk, callers))
        assert lanes.statistics().slid >= LANES, "each slid, all in the same second"
        assert lanes.statistics().slides_waited_for == 0
        assert computed.most_requests == PREFILLS_AT_ONCE
        assert computed.most_tokens == PREFILLS_AT_ONCE * SLIDE_PIECE_TOKENS

    bench.run(story)
