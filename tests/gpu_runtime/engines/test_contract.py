"""What every lane engine promises, over the fake (here) and over vLLM (marker ``vllm``, in an environment of its own)."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from gpu_runtime.engines.port import Embeddings, LaneError, Part, Said, Tokens, Unit, Window
from gpu_runtime.engines.requests import Sampling
from tests.gpu_runtime.engines.benches import FakeBench
from tests.gpu_runtime.engines.fake import FakeOptions
from tests.gpu_runtime.engines.stories import Bench, Caller


def code_of(caught: pytest.ExceptionInfo[LaneError]) -> str:
    return caught.value.code


def test_unit_after_unit_says_what_one_request_would(bench: Bench) -> None:
    async def story() -> None:
        caller = Caller(bench, bench.lanes())
        await caller.open()
        for number in range(6):
            answer = await caller.say_right(embedded=number % 2 == 1)
            assert answer.end.reason == "length"
            assert not answer.end.reopened
        assert len({tuple(answer.said)}) == 1
        await caller.lanes.close(caller.name)

    bench.run(story)


def test_a_lane_may_be_opened_cold(bench: Bench) -> None:
    async def story() -> None:
        caller = Caller(bench, bench.lanes(), seed=2)
        await caller.open(warm=False)
        assert caller.lanes.statistics().lanes_parked == 1
        answer = await caller.say_right()
        assert answer.end.reopened
        await caller.say_right()
        await caller.lanes.close(caller.name)

    bench.run(story)


def test_a_terminator_ends_the_unit_and_stays_in_the_history(bench: Bench) -> None:
    async def story() -> None:
        caller = Caller(bench, bench.lanes(), seed=3)
        await caller.open()
        for place in (0, 2, 4):
            ids = caller.ids(6)
            expected = await bench.one_shot([*caller.history, Tokens(ids)], Sampling(5))
            stop = (expected[place],)
            answer = await caller.feed(Unit((Tokens(ids),), 5, stop))
            assert answer.end.reason == "stop"
            assert answer.said == expected[: expected.index(stop[0]) + 1]
            await caller.right(answer, 5, stop)
        await caller.say_right()
        await caller.lanes.close(caller.name)

    bench.run(story)


def test_tokens_come_one_by_one_with_their_times(bench: Bench) -> None:
    async def story() -> None:
        lanes = bench.lanes()
        await lanes.open("lane", [Tokens((7, 8, 9))])
        pieces, end = [], None
        async with aclosing(lanes.feed("lane", Unit((Tokens((11, 12)),), 8))) as events:
            async for event in events:
                if isinstance(event, Said):
                    pieces.append(event)
                else:
                    end = event
        assert end is not None
        assert sum(len(piece.ids) for piece in pieces) == 8
        assert len(pieces) >= 4
        stages = dict(end.timings)
        assert list(stages) == ["fed", "started", "first_token", "done"]
        assert stages["fed"] <= stages["started"] <= stages["first_token"] == pieces[0].at_ns
        assert pieces[0].at_ns <= pieces[-1].at_ns <= stages["done"]
        await lanes.close("lane")

    bench.run(story)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("back", [1, 3, 9, 20, 40])
def test_a_truncated_lane_says_what_one_request_over_the_rest_would(bench: Bench, back: int, warm: bool) -> None:
    async def story() -> None:
        caller = Caller(bench, bench.lanes(), seed=4)
        await caller.open(40)
        for number in range(4):
            await caller.say(embedded=number == 2)
        await caller.cut(caller.tokens - back, warm)
        first = await caller.say_right()
        computed = back > 1  # the last token was not computed yet
        splits = back == 20  # through rows: their item cannot be halved
        assert first.end.reopened == (computed and not warm and (splits or not bench.engine.rewinds))
        await caller.say_right(embedded=True)
        assert caller.lanes.statistics().truncated == 1
        await caller.lanes.close(caller.name)

    bench.run(story)


def test_a_truncated_lane_finds_its_heard_part_in_the_prefix_cache(bench: Bench) -> None:
    async def story() -> None:
        caller = Caller(bench, bench.lanes(), seed=5)
        await caller.open(100)
        await caller.say(new=8)
        await caller.cut(104)
        answer = await caller.say_right()
        assert answer.end.reopened != bench.engine.rewinds
        assert answer.end.cached_tokens >= (0 if bench.engine.rewinds else 96)
        await caller.lanes.close(caller.name)

    bench.run(story)


def test_a_unit_that_is_cut_off_ends_and_the_lane_goes_on_from_what_was_heard(bench: Bench) -> None:
    async def story() -> None:
        lanes = bench.lanes()
        caller = Caller(bench, lanes, seed=6)
        await caller.open()
        ids, said, end = caller.ids(6), [], None
        async with aclosing(lanes.feed(caller.name, Unit((Tokens(ids),), 50))) as events:
            async for event in events:
                if isinstance(event, Said):
                    said.extend(event.ids)
                    if len(said) >= 4 and end is None:
                        await lanes.abort(caller.name)
                else:
                    end = event
        assert end is not None
        assert end.reason == "aborted"
        assert len(said) < 50
        assert end.history_tokens == lanes.history_tokens(caller.name) == 26 + len(said)
        caller.history += [Tokens(ids), Tokens(tuple(said))]
        await caller.cut(28)
        await caller.say_right()
        await lanes.close(caller.name)

    bench.run(story)


def test_barge_in_from_another_task(bench: Bench) -> None:
    async def story() -> None:
        caller = Caller(bench, bench.lanes(), seed=7)
        await caller.open()
        heard = asyncio.Event()
        ids = caller.ids(6)

        async def speak() -> tuple[int, str]:
            count, reason = 0, ""
            async with aclosing(caller.lanes.feed(caller.name, Unit((Tokens(ids),), 60))) as events:
                async for event in events:
                    if isinstance(event, Said):
                        count += len(event.ids)
                        heard.set()
                    else:
                        reason = event.reason
            return count, reason

        speaking = asyncio.create_task(speak())
        await heard.wait()
        await caller.lanes.truncate(caller.name, 23)
        count, reason = await speaking
        assert (reason, count < 60) == ("aborted", True)
        caller.history = [caller.history[0], Tokens(ids[:3])]
        await caller.say_right()
        await caller.lanes.close(caller.name)

    bench.run(story)


async def cut_before_the_first_word(bench: Bench) -> None:
    """Again and again, in every early instant of a unit; what is fed next says its own words only."""
    lanes = bench.lanes()
    caller = Caller(bench, lanes, seed=22)
    await caller.open()
    for instants in range(1, 9):
        unit = asyncio.create_task(caller.say(new=20))
        for _ in range(instants):
            await asyncio.sleep(0)
        await lanes.truncate(caller.name, 20)
        ended = await unit
        assert ended.end.reason == "aborted"
        caller.history = caller.history[:1]
        if ended.said:
            assert instants > 1, "a word is not there at once"
            break
        if instants % 3:  # otherwise the next is cut at once, too
            await caller.say_right()
            await caller.cut(20)
    await caller.say_right()
    await lanes.close(caller.name)


def test_a_unit_that_is_cut_before_its_first_word_leaves_nothing_to_the_next(bench: Bench) -> None:
    bench.run(lambda: cut_before_the_first_word(bench))


def test_a_word_that_a_cut_unit_leaves_to_the_next_is_noticed() -> None:
    leaking = FakeBench(FakeOptions(rewinds=True, step_s=0.01, leaks=True))
    with pytest.raises(AssertionError):
        leaking.run(lambda: cut_before_the_first_word(leaking))


@pytest.mark.parametrize("seed", [8, *(range(100, 125) if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else ())])
def test_a_slide_takes_over_between_two_units(bench: Bench, seed: int) -> None:
    async def story() -> None:
        caller = Caller(bench, bench.lanes(Window(high=120, low=70)), seed=seed)
        await caller.open(20)
        slides = 0
        for number in range(24):
            answer = await caller.say(embedded=number % 3 == 0)
            if answer.end.slid is not None:
                slides += 1
                assert answer.end.slid.units_dropped > 0
                assert answer.end.slid.tokens_before >= 120
                caller.slide(answer.end, 20)
            await caller.right(answer)
            assert caller.tokens <= 160
            await asyncio.sleep(0.05)
        assert slides >= 2
        assert caller.lanes.statistics().slid == slides
        assert caller.lanes.statistics().slides_waited_for == 0
        await caller.lanes.close(caller.name)

    bench.run(story)


@pytest.mark.parametrize("warm", [False, True])
def test_a_lane_over_a_heard_history_goes_on_from_it_and_lets_it_slide_away(bench: Bench, warm: bool) -> None:
    """What a lane is filled with from the log: its prompt stays, the units of before leave as others do."""

    async def story() -> None:
        caller = Caller(bench, bench.lanes(Window(high=120, low=70)), seed=23)
        caller.history = [Tokens(caller.ids(20))]
        heard: list[list[Part]] = [
            [Embeddings(bench.rows(caller.ids(4))), Tokens(caller.ids(9 + number))] for number in range(5)
        ]
        await caller.lanes.open(caller.name, caller.history, heard, warm=warm)
        caller.history += [part for unit in heard for part in unit]
        assert caller.lanes.history_tokens(caller.name) == caller.tokens
        slides = 0
        for _ in range(9):
            answer = await caller.say()
            if answer.end.slid is not None:
                slides += 1
                caller.slide(answer.end, 20)
            await caller.right(answer)
            await asyncio.sleep(0.05)
        assert slides >= 1
        await caller.lanes.close(caller.name)

    bench.run(story)


def test_a_lane_that_is_full_ends_alone(bench: Bench) -> None:
    async def story() -> None:
        lanes = bench.lanes()
        full, other = Caller(bench, lanes, "full", seed=9), Caller(bench, lanes, "other", seed=10)
        longest = lanes.limits.lane_tokens_max
        await full.open(longest - 20)
        await other.open()
        await full.say_right(6, 5)
        with pytest.raises(LaneError) as caught:
            await full.say(6, 5)
        assert code_of(caught) == "lane_full"
        assert lanes.history_tokens("full") == longest - 9
        await other.say_right()
        with pytest.raises(LaneError) as caught:
            await lanes.open("never", [Tokens(full.ids(longest))])
        assert code_of(caught) == "lane_full"
        for lane in ("full", "other"):
            await lanes.close(lane)

    bench.run(story)


def test_more_lanes_than_places(bench: Bench) -> None:
    async def story() -> None:
        lanes = bench.lanes()
        callers = [
            Caller(bench, lanes, f"lane{number}", seed=20 + number) for number in range(lanes.limits.requests_max + 3)
        ]
        for caller in callers:
            await caller.open()
        for _ in range(2):
            for caller in callers:
                await caller.say_right()
        answers = await asyncio.gather(*(caller.say() for caller in callers))
        for caller, answer in zip(callers, answers, strict=True):
            await caller.right(answer)
        statistics = lanes.statistics()
        assert statistics.parked > 0
        assert statistics.lanes_parked >= 3
        assert (statistics.lanes_open, statistics.units_running) == (len(callers), 0)
        for caller in callers:
            await lanes.close(caller.name)
        assert lanes.statistics().kv_tokens_held == 0

    bench.run(story)


def test_more_history_than_memory(bench: Bench) -> None:
    async def story() -> None:
        lanes = bench.lanes()
        size = lanes.limits.lane_tokens_max * 3 // 4
        count = lanes.limits.kv_tokens // size + 2
        callers = [Caller(bench, lanes, f"lane{number}", seed=40 + number) for number in range(count)]
        for caller in callers:
            await caller.open(size)
        for _ in range(2):
            answers = await asyncio.gather(*(caller.say() for caller in callers))
            for caller, answer in zip(callers, answers, strict=True):
                await caller.right(answer)
        assert lanes.statistics().parked > 0
        assert lanes.statistics().kv_tokens_held <= lanes.limits.kv_tokens
        for caller in callers:
            await lanes.close(caller.name)

    bench.run(story)


def _broken(kind: str, width: int) -> Any:
    rows = np.zeros((2, width), np.float32)
    match kind:
        case "not a number":
            rows[1, 0] = np.nan
        case "infinite":
            rows[0, 1] = np.inf
        case "too wide":
            rows = np.zeros((2, width + 1), np.float32)
        case "of another type":
            rows = rows.astype(np.float64)
        case "flat":
            rows = rows.ravel()
    return rows


@pytest.mark.parametrize("kind", ["not a number", "infinite", "too wide", "of another type", "flat"])
def test_a_bad_embedding_is_refused_and_nothing_was_appended(bench: Bench, kind: str) -> None:
    async def story() -> None:
        caller = Caller(bench, bench.lanes(), seed=11)
        await caller.open()
        with pytest.raises(LaneError) as caught:
            await caller.feed(Unit((Embeddings(_broken(kind, bench.engine.limits.embedding_width)),), 5))
        assert code_of(caught) == "bad_embedding"
        assert caller.lanes.history_tokens(caller.name) == caller.tokens
        await caller.say_right()
        await caller.lanes.close(caller.name)

    bench.run(story)


def test_what_makes_no_sense_has_a_code(bench: Bench) -> None:
    async def story() -> None:
        lanes = bench.lanes()
        caller = Caller(bench, lanes, seed=12)
        await caller.open()

        async def refused(code: str, doing: Any) -> None:
            with pytest.raises(LaneError) as caught:
                await doing
            assert code_of(caught) == code

        await refused("lane_exists", lanes.open(caller.name, [Tokens((1,))]))
        await refused("bad_unit", lanes.open("empty", []))
        await refused("lane_unknown", lanes.truncate("nobody", 1))
        await refused("lane_unknown", Caller(bench, lanes, "nobody").say())
        await refused("bad_position", lanes.truncate(caller.name, 0))
        await refused("bad_position", lanes.truncate(caller.name, 21))
        await refused("bad_unit", caller.feed(Unit((Tokens((1,)),), 0)))
        await refused("bad_unit", caller.feed(Unit((Tokens((-1,)),), 1)))
        await refused("bad_unit", caller.feed(Unit((), 1)))
        async with aclosing(lanes.feed(caller.name, Unit((Tokens((7,)),), 30))) as events:
            await anext(events)
            await refused("lane_busy", caller.say())
        await lanes.close(caller.name)
        await lanes.close(caller.name)
        assert lanes.statistics().lanes_open == 0

    bench.run(story)


def test_a_listener_that_leaves_in_mid_unit_leaves_a_lane_that_works(bench: Bench) -> None:
    async def story() -> None:
        lanes = bench.lanes()
        caller = Caller(bench, lanes, seed=13)
        await caller.open()
        async with aclosing(lanes.feed(caller.name, Unit((Tokens((7, 8)),), 30))) as events:
            await anext(events)
        assert lanes.statistics().units_running == 0
        await caller.cut(20)
        await caller.say_right()
        await lanes.close(caller.name)

    bench.run(story)


def test_another_engine_goes_on_from_the_history(bench: Bench) -> None:
    """What a worker's restart is to a lane: opened anew, over what was heard."""

    async def story() -> None:
        caller = Caller(bench, bench.lanes(), seed=14)
        await caller.open()
        await caller.say(embedded=True)
        await caller.say()
        await caller.lanes.close(caller.name)
        again = Caller(bench, bench.lanes(), seed=15, history=list(caller.history))
        await again.lanes.open(again.name, again.history)
        await again.say_right()
        await again.lanes.close(again.name)

    bench.run(story)


def test_a_window_must_fit_into_a_lane() -> None:
    async def story() -> None:
        with pytest.raises(ValueError, match="window"):
            bench.lanes(Window(high=1_000, low=10))

    bench = FakeBench()
    bench.run(story)
