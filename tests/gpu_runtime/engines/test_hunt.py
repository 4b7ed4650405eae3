"""Lanes that are cut, truncated, slid and parked at random still say what one request over their history would."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.engines.port import Said, Tokens, Unit, UnitEnd
from gpu_runtime.engines.times import BOUNDS_MS, Rate, TimesRecorder
from tests.gpu_runtime.engines.benches import FakeBench
from tests.gpu_runtime.engines.fake import LIMITS, FakeOptions
from tests.gpu_runtime.engines.stories import Caller

LANES = 3
PROMPT = 20
NARROW = attrs.evolve(LIMITS, requests_max=2, kv_tokens=288)
"""Less than the lanes want: they are parked all the time."""

steps = st.lists(
    st.tuples(
        st.integers(0, LANES - 1),
        st.sampled_from(["say", "say rows", "cut off", "cut off and back", "back", "back and warm", "slide"]),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=14,
)


async def say_right(caller: Caller, tokens: int = 6, embedded: bool = False) -> None:
    """A unit, which may begin with a slide that was asked for long ago."""
    answer = await caller.say(tokens, embedded=embedded)
    slid(caller, answer.end)
    await caller.right(answer)


async def cut_off(caller: Caller, after: int) -> None:
    """Feed a unit, stop it after some tokens; what was said is history."""
    ids, said, end = caller.ids(5), [], None
    async with aclosing(caller.lanes.feed(caller.name, Unit((Tokens(ids),), 20))) as events:
        async for event in events:
            if isinstance(event, Said):
                said.extend(event.ids)
                if len(said) == after:
                    await caller.lanes.abort(caller.name)
            else:
                end = event
    caller.history += [Tokens(ids), Tokens(tuple(said))]
    assert end is not None
    slid(caller, end)


def slid(caller: Caller, end: UnitEnd) -> None:
    if end.slid is not None:
        caller.slide(end, PROMPT)


async def step(caller: Caller, verb: str, number: int) -> None:
    if caller.tokens > 150:
        await caller.cut(PROMPT)
    match verb:
        case "say" | "say rows":
            await say_right(caller, number, embedded=verb == "say rows")
        case "cut off":
            await cut_off(caller, after=number % 20 + 1)
        case "cut off and back":
            await cut_off(caller, after=number % 20 + 1)
            await caller.cut(max(caller.tokens - number, PROMPT))
        case "back" | "back and warm":
            await caller.cut(max(caller.tokens - number, PROMPT), warm=verb == "back and warm")
        case "slide":
            await caller.lanes.slide(caller.name, keep_tokens=60)
            await say_right(caller)


@pytest.mark.parametrize("rewinds", [False, True])
@given(story=steps)
def test_whatever_happens_to_a_lane_its_words_are_those_of_one_request(rewinds: bool, story: Any) -> None:
    bench = FakeBench(FakeOptions(NARROW, step_s=0.01, rewinds=rewinds))

    async def told() -> None:
        lanes = bench.lanes()
        callers = [Caller(bench, lanes, f"lane{number}", seed=number) for number in range(LANES)]
        for caller in callers:
            await caller.open(PROMPT)
        for number, verb, amount in story:
            await step(callers[number], verb, amount)
        for caller in callers:
            if caller.tokens > 150:
                await caller.cut(PROMPT)
            await say_right(caller)
            await lanes.close(caller.name)
        assert (lanes.statistics().kv_tokens_held, len(bench.engine.open)) == (0, 0)

    bench.run(told)


@given(st.lists(st.floats(0, 20_000), max_size=30))
def test_durations_are_counted_under_the_first_bound_that_holds_them(durations_ms: list[float]) -> None:
    recorder = TimesRecorder()
    for duration_ms in durations_ms:
        recorder.add(round(duration_ms * 1e6))
    times = recorder.times()
    assert times.count == len(durations_ms)
    assert times.total_ms == pytest.approx(sum(durations_ms), abs=1e-3)
    for number, bound_ms in enumerate(BOUNDS_MS):
        assert sum(times.counts[: number + 1]) == sum(round(ms * 1e6) <= bound_ms * 1e6 for ms in durations_ms)


def test_a_rate_is_over_the_last_ten_whole_seconds() -> None:
    rate = Rate()
    for second in range(30):
        rate.add(second * 10**9, 3)
        rate.add(second * 10**9 + 500, 4)
    assert rate.per_s(30 * 10**9) == 7
    assert rate.per_s(35 * 10**9) == 3.5
    assert rate.per_s(60 * 10**9) == 0
