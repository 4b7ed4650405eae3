"""Several workers behind one runtime: each session is on one of them, and hears of that one's end only."""

from __future__ import annotations

import os

import pytest
import trio

from core.ports.runtime import (
    CloseSession,
    Durations,
    FromRuntime,
    ModelStatistics,
    Produced,
    RuntimeLost,
    RuntimeReady,
)
from gpu_runtime.host import ModelUnavailable, WorkerOptions, WorkerRuntime, open_worker
from gpu_runtime.host.figures import together
from gpu_runtime.models.scripted import Identity, identify
from tests.gpu_runtime.stories import Caller

pytestmark = [pytest.mark.crash, pytest.mark.realtime]

QUICK = {"unit_ms": 40, "rtf": 0.25, "first_audio_ms": 5, "answer_units": 6}
SLOW_RESTART = WorkerOptions(restart_delays_s=(1.5,))


def on(runtime: WorkerRuntime, worker: int, callers: list[Caller]) -> list[Caller]:
    return [caller for caller in callers if runtime.worker_of(caller.session) == worker]


async def settled(runtime: WorkerRuntime, restarts: int, up: int) -> None:
    """So many workers were started again, so many are up, and every session has a place."""
    with trio.fail_after(60):
        while True:
            now = runtime.statistics()
            if (now.restarts, now.workers_up, now.sessions_waiting) == (restarts, up, 0):
                return
            await trio.sleep(0.02)


async def test_a_loss_is_told_to_the_sessions_of_that_worker_only() -> None:
    async with open_worker("scripted", QUICK, workers=2) as runtime:
        await runtime.wait_ready(2)
        callers = [Caller(runtime, f"s{number}") for number in range(6)]
        for caller in callers:
            caller.open()
            caller.ask("units=60")
            await caller.wait_for(Produced)
        lost, kept = on(runtime, 0, callers), on(runtime, 1, callers)
        assert len(lost) == len(kept) == 3
        runtime.kill_worker(0)
        for caller in lost:
            await caller.wait_for(RuntimeLost)
            await caller.wait_for(RuntimeReady)
            caller.open(epoch=2)
            caller.ask("hello", epoch=2, response_id="r2")
        for caller in lost:
            assert [identify(unit.audio) for unit in await caller.answered()] == [Identity(2, 1, n) for n in range(6)]
        for caller in kept:
            assert [identify(unit.audio) for unit in await caller.answered()] == [Identity(1, 1, n) for n in range(60)]
            assert not caller.of(RuntimeLost)
            assert not caller.of(RuntimeReady)
        await runtime.wait_ready(2)
        assert runtime.statistics().restarts == 1


async def test_the_other_worker_takes_them_over_at_once_if_it_has_room() -> None:
    async with open_worker("scripted", QUICK, workers=2, options=SLOW_RESTART) as runtime:
        await runtime.wait_ready(2)
        callers = [Caller(runtime, f"s{number}") for number in range(4)]
        (first, second) = on(runtime, 0, callers)
        runtime.kill_worker(0)
        await first.wait_for(RuntimeReady)
        assert [type(message) for message in second.got] == [RuntimeLost, RuntimeReady]
        assert runtime.statistics().workers_up == 1
        assert len(on(runtime, 1, callers)) == 4
        await runtime.wait_ready(2)
        assert len(on(runtime, 1, callers)) == 4  # nobody is moved for balance's sake
        newcomer = Caller(runtime, "new")
        assert runtime.worker_of("new") == 0
        newcomer.open()
        await newcomer.barrier()


async def test_without_room_they_wait_and_whoever_has_a_conversation_comes_first() -> None:
    settings = QUICK | {"sessions_max": 2}
    async with open_worker("scripted", settings, workers=2, options=SLOW_RESTART) as runtime:
        await runtime.wait_ready(2)
        assert runtime.capabilities is not None
        assert runtime.capabilities.sessions_max == 4
        callers = [Caller(runtime, f"s{number}") for number in range(4)]
        late = Caller(runtime, "late")
        assert runtime.capabilities_of("late") is None
        late.ask("dropped")
        lost, kept = on(runtime, 0, callers), on(runtime, 1, callers)
        runtime.kill_worker(0)
        await lost[0].wait_for(RuntimeLost)
        assert runtime.capabilities.sessions_max == 2
        assert runtime.statistics().sessions_waiting == 3
        runtime.unsubscribe(kept[0].session, kept[0].hear)  # makes room for one of them
        assert lost[0].of(RuntimeReady)
        assert not lost[1].of(RuntimeReady)
        await lost[1].wait_for(RuntimeReady)
        await late.wait_for(RuntimeReady)
        assert not late.of(RuntimeLost)
        assert runtime.statistics().sessions_waiting == 0
        assert not kept[1].got


async def test_when_all_die_at_once_nobody_is_piled_on_the_first_that_is_back() -> None:
    async with open_worker("scripted", QUICK, workers=2, options=WorkerOptions(spread_s=60.0)) as runtime:
        await runtime.wait_ready(2)
        callers = [Caller(runtime, f"s{number}") for number in range(6)]
        for worker in range(2):
            runtime.kill_worker(worker)
        await settled(runtime, restarts=2, up=2)
        assert [len(on(runtime, worker, callers)) for worker in range(2)] == [3, 3]


async def test_who_does_not_come_back_is_not_waited_for_long() -> None:
    options = WorkerOptions(spread_s=0.2, restart_delays_s=(0.0, 3_600.0))
    async with open_worker("scripted", QUICK, workers=2, options=options) as runtime:
        await runtime.wait_ready(2)
        runtime.kill_worker(1)
        await settled(runtime, restarts=1, up=2)
        callers = [Caller(runtime, f"s{number}") for number in range(4)]
        for worker in range(2):  # the second one's next life is an hour away
            runtime.kill_worker(worker)
        await settled(runtime, restarts=2, up=1)
        assert len(on(runtime, 0, callers)) == 4


async def test_a_sink_that_leaves_while_it_is_told_of_the_loss_disturbs_nobody() -> None:
    async with open_worker("scripted", QUICK) as runtime:

        def leave(message: FromRuntime) -> None:
            assert isinstance(message, RuntimeLost)
            runtime.unsubscribe("leaver", leave)

        runtime.subscribe("leaver", leave)
        stayer = Caller(runtime, "stayer")
        runtime.kill_worker()
        await stayer.wait_for(RuntimeReady)
        assert [type(message) for message in stayer.got] == [RuntimeLost, RuntimeReady]
        assert runtime.statistics().sessions == 1


async def test_a_session_keeps_its_place_until_its_worker_knows_that_it_is_over() -> None:
    """Its ear is there until then, listened to or not; back again, it must not get a second one elsewhere."""
    async with open_worker("scripted", QUICK, workers=2) as runtime:
        await runtime.wait_ready(2)
        others = [Caller(runtime, f"s{number}") for number in range(3)]
        leaver = Caller(runtime, "leaver")
        leaver.open()
        place = runtime.worker_of("leaver")
        runtime.unsubscribe("leaver", leaver.hear)
        assert runtime.worker_of("leaver") == place
        for other in others:
            runtime.unsubscribe(other.session, other.hear)
        again = Caller(runtime, "leaver")
        assert runtime.worker_of("leaver") == place == 1
        runtime.unsubscribe("leaver", again.hear)
        runtime.send(CloseSession("leaver"))
        assert runtime.worker_of("leaver") is None


async def test_their_models_figures_are_those_of_all_together() -> None:
    async with open_worker("scripted", QUICK, workers=2, options=WorkerOptions(ping_interval_s=0.1)) as runtime:
        await runtime.wait_ready(2)
        callers = [Caller(runtime, f"s{number}") for number in range(2)]
        for caller in callers:
            caller.open()
        with trio.fail_after(20):
            while (figures := runtime.statistics().model) is None or figures.lanes_open < 2:
                await trio.sleep(0.02)
        assert figures.lanes_open == 2


def test_figures_add_up() -> None:
    some = Durations((1.0, 2.0), (1, 2, 3), 9.0)
    one = ModelStatistics(lanes_open=1, kv_used=0.2, tokens_per_s=10.0, unit=some)
    other = ModelStatistics(lanes_open=2, kv_used=0.6, tokens_per_s=5.0, unit=some, queue=some)
    both = together([one, other])
    assert both is not None
    assert (both.lanes_open, both.kv_used, both.tokens_per_s) == (3, pytest.approx(0.4), 15.0)
    assert both.unit == Durations((1.0, 2.0), (2, 4, 6), 18.0)
    assert both.queue == some
    assert together([]) is None


async def test_it_opens_with_the_first_and_fails_when_all_have_failed() -> None:
    with pytest.raises(ModelUnavailable, match="fetch the script first"):
        async with open_worker("scripted", {"load_error": "fetch the script first"}, workers=2):
            pytest.fail("it came up")


async def test_the_progress_of_all_is_shown_as_one() -> None:
    seen: list[float] = []
    settings = QUICK | {"load_ms": 50}
    async with open_worker("scripted", settings, lambda _, fraction: seen.append(fraction), workers=2) as runtime:
        await runtime.wait_ready(2)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


async def test_all_are_gone_at_the_end() -> None:
    async with open_worker("scripted", QUICK, workers=3) as runtime:
        await runtime.wait_ready(3)
        assert len({runtime.worker_of(Caller(runtime, f"s{number}").session) for number in range(3)}) == 3
        pids = runtime.pids
        began = trio.current_time()
    assert trio.current_time() - began < 30
    assert len(set(pids)) == 3
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
