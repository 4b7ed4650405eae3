"""What only the inline host promises: the same story is the same to the nanosecond, and what a worker would say."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from core.ports.runtime import FromRuntime, Produced, RuntimeLost, RuntimeReady, SpeechEnded
from core.session.config import TurnDetection
from gpu_runtime.host import inline as inline_host
from gpu_runtime.host import open_inline, open_worker
from gpu_runtime.models.scripted import machine
from tests.gpu_runtime.stories import Caller, flood, silence, tone, without_timings

QUICK = {"unit_ms": 40, "rtf": 0.25, "first_audio_ms": 5, "answer_units": 6}


async def conversation(caller: Caller) -> list[FromRuntime]:
    """Speech, a whole answer, more speech, an answer that fails to end in time."""
    caller.open(turn_detection=TurnDetection(silence_duration_ms=100))
    caller.say(tone(200) + silence(200))
    await caller.wait_for(SpeechEnded)
    caller.ask("first", response_id="r1")
    await caller.answered()
    caller.say(tone(100) + silence(200))
    await caller.wait_for(SpeechEnded, 2)
    caller.open_lane(2)
    caller.ask("second units=4", epoch=2, response_id="r2")
    await caller.answered(2)
    return caller.got


async def test_the_same_story_is_the_same_to_the_nanosecond() -> None:
    async def play(seed: int) -> list[list[FromRuntime]]:
        random.seed(seed)
        async with open_inline(lambda: machine(**QUICK), latency_s=0.003) as runtime, trio.open_nursery() as nursery:
            callers = [Caller(runtime, f"s{number}") for number in range(5)]
            started_at_ns = round(trio.current_time() * 1e9)
            for caller in callers:
                nursery.start_soon(conversation, caller)
            while not all(len(caller.units("r2")) == 4 for caller in callers):
                await trio.sleep(0.01)
        timings = [
            [
                (stage, at_ns - started_at_ns)
                for message in caller.got
                for stage, at_ns in getattr(message, "timings", ())
            ]
            for caller in callers
        ]
        return [without_timings(caller.got) for caller in callers] + timings  # type: ignore[operator]

    assert await play(1) == await play(2)


@pytest.mark.realtime
async def test_a_worker_says_what_the_inline_machine_says() -> None:
    async with open_worker("scripted", QUICK) as runtime:
        from_worker = await conversation(Caller(runtime))
    async with open_inline(lambda: machine(**QUICK)) as runtime_inline:
        from_inline = await conversation(Caller(runtime_inline))
    assert without_timings(from_worker) == without_timings(from_inline)


async def test_nothing_is_said_from_within_send() -> None:
    async with open_inline(lambda: machine(**QUICK)) as runtime:
        caller = Caller(runtime)
        caller.open(turn_detection=TurnDetection())
        caller.say(tone(100))
        assert not caller.got
        await trio.testing.wait_all_tasks_blocked()
        assert caller.got


async def test_words_on_their_way_arrive_after_an_abort() -> None:
    """So a session must check the epoch of what it gets; with a latency the inline host shows whether it does."""
    async with open_inline(lambda: machine(**QUICK), latency_s=0.05) as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("a long story")
        await caller.wait_for(Produced, 2)
        before = len(caller.units())
        caller.cut_off(1)
        await trio.sleep(1)
        assert before < len(caller.units()) <= before + 6


async def test_a_hanging_machine_has_a_bounded_inbox_and_is_replaced() -> None:
    async with open_inline(lambda: machine(stall_at_unit=0, fault_epoch=1, **QUICK), stall_timeout_s=15) as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("hello")
        await trio.sleep(1)
        assert flood(caller, bytes(100_000)) < 200
        assert runtime.statistics().queue_bytes <= inline_host.QUEUE_BYTES_MAX
        began_at = trio.current_time()
        await caller.wait_for(RuntimeLost)
        assert trio.current_time() - began_at == pytest.approx(14.005, abs=0.01)
        assert not runtime.statistics().queue_items
        await caller.wait_for(RuntimeReady)


async def test_a_sink_may_do_anything_while_it_is_called() -> None:
    """Subscribe others, leave, and send: from within a RuntimeReady, to the new machine."""
    async with open_inline(lambda: machine(**QUICK)) as runtime:
        callers = [Caller(runtime, f"s{number}") for number in range(3)]

        def leave_and_ask(message: FromRuntime) -> None:
            if isinstance(message, RuntimeReady):
                runtime.unsubscribe("s2", callers[2].hear)
                runtime.subscribe("s0", callers[0].hear)
                callers[0].open(epoch=2)
                callers[0].ask("hello", epoch=2)

        runtime.subscribe("s0", leave_and_ask)
        runtime.kill_worker()
        assert len(await callers[0].answered()) == 6
        assert [type(message) for message in callers[1].got] == [RuntimeLost, RuntimeReady]
        assert [type(message) for message in callers[2].got] == [RuntimeLost]
