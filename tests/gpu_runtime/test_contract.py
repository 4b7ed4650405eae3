"""What every host of a runtime promises, as stories that run over all: a step machine inline under a mock clock, a worker
process in real time, and a Ray actor on another node of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import pytest

from core.ports.runtime import (
    CloseSession,
    CommitTurn,
    ConfigureSession,
    Heard,
    HistoryTurn,
    LaneEnded,
    LaneFailed,
    OpenSession,
    Part,
    PauseLane,
    Produced,
    Respond,
    ResumeLane,
    RuntimeLost,
    RuntimeReady,
    SpeechBegan,
    SpeechEnded,
    SpeechGoesOn,
    Tool,
    ToolCalled,
    TruncateLane,
)
from core.session.config import AudioFormat, TurnDetection
from gpu_runtime.cluster.opening import ClusterOptions, open_cluster
from gpu_runtime.host import InlineRuntime, WorkerOptions, WorkerRuntime, open_inline, open_worker
from gpu_runtime.models.scripted import Identity, identify, machine
from tests.gpu_runtime.stories import Caller, silence, tone, without_timings

Host = InlineRuntime | WorkerRuntime

QUICK = {"unit_ms": 40, "rtf": 0.25, "first_audio_ms": 5, "answer_units": 6}
STALL_TIMEOUT_S = 2.0


@asynccontextmanager
async def inline(**settings: Any) -> Any:
    async with open_inline(lambda: machine(**QUICK | settings), 0.001, 0.1, STALL_TIMEOUT_S) as runtime:
        yield runtime


@asynccontextmanager
async def worker(**settings: Any) -> Any:
    options = WorkerOptions(ping_interval_s=0.2, stall_timeout_s=STALL_TIMEOUT_S)
    async with open_worker("scripted", QUICK | settings, options=options) as runtime:
        yield runtime


@attrs.frozen
class Opener:
    """``killed``: how the host calls the death of a worker by SIGKILL."""

    open: Callable[..., AbstractAsyncContextManager[Host]]
    killed: str = "killed by SIGKILL"

    def __call__(self, **settings: Any) -> AbstractAsyncContextManager[Host]:
        return self.open(**settings)


def actor_in(address: str) -> Opener:
    @asynccontextmanager
    async def actor(**settings: Any) -> Any:
        options = WorkerOptions(ping_interval_s=0.2, stall_timeout_s=STALL_TIMEOUT_S)
        async with open_cluster("scripted", ClusterOptions(address), QUICK | settings, options=options) as runtime:
            yield runtime

    return Opener(actor, "its process or its machine is gone")


RAY = (pytest.mark.ray, pytest.mark.realtime)


@pytest.fixture(params=["inline", pytest.param("worker", marks=pytest.mark.realtime), pytest.param("ray", marks=RAY)])
def opener(request: pytest.FixtureRequest) -> Opener:
    if request.param == "ray":
        return actor_in(request.getfixturevalue("cluster").address)
    return Opener({"inline": inline, "worker": worker}[request.param])


async def test_an_answer_comes_in_units_that_add_up(opener: Opener) -> None:
    async with opener() as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("what is the time")
        units = await caller.answered()
    assert [unit.unit for unit in units] == list(range(6))
    text = "".join(unit.text for unit in units)
    assert text == "1 what is the time a1w5 a1w6 a1w7 a1w8 a1w9 a1w10 a1w11"
    ends_ms, said = 0, ""
    for unit in units:
        assert identify(unit.audio) == Identity(epoch=1, response=1, unit=unit.unit)
        assert len(unit.audio) == 2 * 24_000 * 40 // 1000
        said += unit.text
        assert unit.marks[-1].chars == len(said)
        assert all(ends_ms < mark.audio_end_ms <= ends_ms + 40 for mark in unit.marks)
        assert all(text[: mark.chars].split() == text.split()[: len(text[: mark.chars].split())] for mark in unit.marks)
        ends_ms += 40
    assert caller.of(LaneEnded) == [LaneEnded("s", 1, "r1", "completed", input_tokens=4, output_tokens=12)]


async def test_an_answer_shows_what_the_model_was_told(opener: Opener) -> None:
    async with opener() as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.say(tone(200))
        caller.runtime.send(CommitTurn("s", "i1", 0, 200))
        turns = (
            HistoryTurn("user", "hello", "i0"),
            HistoryTurn("assistant", "good day", "a0"),
            HistoryTurn("user", None, "i1"),
        )
        caller.ask_over(turns)
        units = await caller.answered()
    assert "".join(unit.text for unit in units).startswith("3 turn 1 ")


async def test_long_and_counted_answers_can_be_asked_for(opener: Opener) -> None:
    async with opener(rtf=0, long_units=20) as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("a long story", response_id="r1")
        caller.ask("units=3", response_id="r2")
        caller.ask("five words at most please", response_id="r3", max_output_tokens=3)
        caller.ask_over((HistoryTurn("user", "in writing", "i1"),), response_id="r4", modalities=("text",))
        await caller.answered(4)
    assert [len(caller.units(f"r{number}")) for number in (1, 2, 3, 4)] == [20, 3, 2, 6]
    assert [ended.reason for ended in caller.of(LaneEnded)] == ["completed"] * 2 + ["max_output_tokens", "completed"]
    assert "".join(unit.text for unit in caller.units("r3")) == "1 five words"
    assert all(not unit.audio and not unit.marks for unit in caller.units("r4"))


LOOK_UP = (Tool("look_up", "Looks things up.", '{"type": "object"}'),)


async def test_it_says_what_it_takes(opener: Opener) -> None:
    async with opener(inputs="audio,text", tool_calls=0, can_truncate=1) as runtime:
        capabilities = runtime.capabilities
    assert capabilities is not None
    assert capabilities.inputs == ("audio", "text")
    assert (capabilities.tool_calls, capabilities.can_truncate) == (False, True)


async def test_a_function_call_comes_in_its_place_and_its_result_is_told(opener: Opener) -> None:
    async with opener(answer_units=3) as runtime:
        caller = Caller(runtime)
        runtime.send(OpenSession("s", AudioFormat(), None, 0, LOOK_UP))
        caller.open_lane(1)
        caller.ask("please call=look_up")
        await caller.answered()
        kinds = [type(message) for message in caller.got]
        (called,) = caller.of(ToolCalled)
        turns = (
            HistoryTurn("user", "please call=look_up", "i1"),
            HistoryTurn("assistant", called.arguments, "c1", name=called.name, call_id=called.call_id),
            HistoryTurn("tool", "it is 42", "t1", call_id=called.call_id),
        )
        caller.ask_over(turns, response_id="r2")
        units = await caller.answered(2)
    assert kinds == [Produced, Produced, Produced, ToolCalled, LaneEnded]
    assert (called.epoch, called.response_id, called.name) == (1, "r1", "look_up")
    assert called.arguments == '{"text": "please call=look_up"}'
    assert "".join(unit.text for unit in units).startswith("3 please call=look_up got it is")
    assert len(caller.of(ToolCalled)) == 1


async def test_tools_are_a_matter_of_the_session_or_of_one_answer(opener: Opener) -> None:
    async with opener(call_at_unit=1) as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("call=look_up")
        await caller.answered()
        runtime.send(ConfigureSession("s", AudioFormat(), None, LOOK_UP, "required"))
        caller.ask("hello", response_id="r2")
        await caller.answered(2)
        turns = (HistoryTurn("user", "call=look_up", "i1"),)
        runtime.send(Respond("s", 1, "r3", "", turns, ("audio",), None, None, "none"))
        runtime.send(Respond("s", 1, "r4", "", turns, ("audio",), None, (), None))
        await caller.answered(4)
    assert [called.response_id for called in caller.of(ToolCalled)] == ["r2"]
    place = [message for message in caller.got if getattr(message, "response_id", "") == "r2"]
    assert [type(message) for message in place[:3]] == [Produced, ToolCalled, Produced]


async def test_an_abort_before_a_call_comes_before_it(opener: Opener) -> None:
    async with opener(call_at_unit=4) as runtime:
        caller = Caller(runtime)
        runtime.send(OpenSession("s", AudioFormat(), None, 0, LOOK_UP))
        caller.open_lane(1)
        caller.ask("call=look_up units=30")
        await caller.wait_for(Produced)
        caller.cut_off(1)
        await caller.barrier()
        known = len(caller.of(ToolCalled))  # the abort may have been late
        caller.open_lane(2)
        caller.ask("units=6", epoch=2, response_id="r2")
        await caller.answered()
        assert len(caller.of(ToolCalled)) == known


async def test_images_and_voices_are_known_by_their_digests(opener: Opener) -> None:
    async with opener(answer_units=4) as runtime:
        caller = Caller(runtime)
        caller.open()
        runtime.send(Part("s", 1, "image", "d1", "image/png", 0, "", "", b"png"))
        runtime.send(Part("s", 1, "reference_audio", "abcdef", "audio/pcm", 0, "", "", b"pcm"))
        runtime.send(Part("s", 1, "text", "", "", 0, "", "so", b""))
        runtime.send(TruncateLane("s", 1, "a0", 3))
        caller.ask_over((HistoryTurn("user", "look", "i1", images=("d1", "d2")),))
        units = await caller.answered()
        caller.open()  # afresh: it knows nothing
        caller.ask_over((HistoryTurn("user", "look", "i1", images=("d1", "d2")),), response_id="r2")
        again = await caller.answered(2)
    assert "".join(unit.text for unit in units).startswith("1 look saw=1 missing=1 voice=abcd a1w5")
    assert "".join(unit.text for unit in again).startswith("1 look missing=2 a1w3")


async def test_an_abort_is_the_last_word_on_its_lane(opener: Opener) -> None:
    async with opener() as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("a long story")
        await caller.wait_for(Produced, 3)
        caller.cut_off(1)
        await caller.barrier()
        before = len(caller.units("r1"))
        caller.open_lane(2)
        caller.ask("something else", epoch=2, response_id="r2")
        units = await caller.answered()
    assert len(caller.units("r1")) == before
    assert [identify(unit.audio) for unit in units] == [Identity(2, 2, number) for number in range(6)]


async def test_a_new_lane_silences_those_below_it(opener: Opener) -> None:
    async with opener() as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("a long story")
        await caller.wait_for(Produced)
        caller.open_lane(5)
        await caller.barrier()
        before = len(caller.got)
        caller.ask("too late", epoch=1, response_id="r2")
        caller.ask("too late", epoch=4, response_id="r3")
        caller.open_lane(4)
        caller.ask("now", epoch=5, response_id="r4")
        await caller.answered()
    assert {unit.response_id for unit in caller.got[before:] if isinstance(unit, Produced)} == {"r4"}


async def test_a_lane_that_was_not_opened_fails_that_answer(opener: Opener) -> None:
    async with opener() as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("where am I", epoch=2)
        failed = await caller.wait_for(LaneFailed)
        caller.ask("fine", response_id="r2")
        assert len(await caller.answered()) == 6
    assert (failed.epoch, failed.response_id, failed.code) == (2, "r1", "lane_unknown")


async def test_a_lane_takes_no_more_questions_than_it_can_hold(opener: Opener) -> None:
    async with opener(first_audio_ms=100) as runtime:
        caller = Caller(runtime)
        caller.open()
        for number in range(17):
            caller.ask("units=1", response_id=f"r{number}")
        failed = await caller.wait_for(LaneFailed)
    assert (failed.response_id, failed.code) == ("r16", "lane_busy")


async def test_a_paused_lane_is_silent_until_it_is_resumed(opener: Opener) -> None:
    async with opener() as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("units=30")
        await caller.wait_for(Produced, 2)
        runtime.send(PauseLane("s", 1))
        runtime.send(PauseLane("s", 7))
        await caller.barrier()
        before = len(caller.units())
        other = Caller(runtime, "other")  # time goes by: another session has a whole answer
        other.open()
        other.ask("hello")
        await other.answered()
        assert len(caller.units()) == before
        runtime.send(ResumeLane("s", 1))
        runtime.send(ResumeLane("s", 1))
        assert [unit.unit for unit in await caller.answered()] == list(range(30))


async def test_a_closed_session_is_silent(opener: Opener) -> None:
    async with opener() as runtime:
        caller, other = Caller(runtime), Caller(runtime, "other")
        caller.open()
        other.open()
        caller.ask("a long story")
        await caller.wait_for(Produced)
        runtime.send(CloseSession("s"))
        await other.barrier()
        before = len(caller.got)
        caller.ask("anyone there")
        caller.say(tone(100))
        other.ask("hello")
        await other.answered()
        assert len(caller.got) == before


async def test_opening_twice_starts_afresh(opener: Opener) -> None:
    async with opener() as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("a long story")
        await caller.wait_for(Produced)
        caller.open()
        await caller.barrier()
        before = len(caller.got)
        caller.ask("again", response_id="r2")
        assert [identify(unit.audio) for unit in await caller.answered()] == [Identity(1, 1, n) for n in range(6)]
        assert all(message in caller.units("r2") for message in caller.got[before:] if isinstance(message, Produced))


async def test_speech_faster_than_real_time_is_heard_in_audio_time(opener: Opener) -> None:
    async with opener() as runtime:
        caller = Caller(runtime)
        caller.open(turn_detection=TurnDetection(silence_duration_ms=200))
        for _ in range(2):
            caller.say(silence(100) + tone(500) + silence(100) + tone(100) + silence(600))
        await caller.wait_for(SpeechEnded, 2)
    assert without_timings(caller.got) == [
        SpeechBegan("s", 1, 100),
        *(SpeechGoesOn("s", 1, ms) for ms in (100, 200, 300, 400, 500, 620)),
        SpeechEnded("s", 1, 100, 800, "turn 1"),
        SpeechBegan("s", 2, 1500),
        *(SpeechGoesOn("s", 2, ms) for ms in (100, 200, 300, 400, 500, 620)),
        SpeechEnded("s", 2, 1500, 2200, "turn 2"),
    ]


async def test_a_client_that_stops_sending_in_mid_speech_ends_its_turn(opener: Opener) -> None:
    async with opener(idle_fill_ms=80) as runtime:
        caller = Caller(runtime)
        caller.open(turn_detection=TurnDetection(silence_duration_ms=100))
        caller.say(tone(200))
        ended = await caller.wait_for(SpeechEnded)
        assert (ended.start_ms, ended.end_ms) == (0, 200)
        caller.say(silence(40) + tone(100))  # the reported clock did not move in the pause
        assert (await caller.wait_for(SpeechBegan, 2)).start_ms == 240


async def test_a_committed_turn_is_read_from_the_script(opener: Opener) -> None:
    async with opener() as runtime:
        caller = Caller(runtime)
        caller.open()
        for item, audio in (("i1", tone(100)), ("i2", silence(100)), ("i3", tone(60))):
            caller.say(audio)
            runtime.send(CommitTurn("s", item, 0, caller.fed_ms))
        await caller.wait_for(Heard, 3)
    assert caller.of(Heard) == [Heard("s", "i1", "turn 1"), Heard("s", "i2", ""), Heard("s", "i3", "turn 3")]


async def test_a_death_is_told_to_all_and_the_next_worker_works(opener: Opener) -> None:
    async with opener() as runtime:
        callers = [Caller(runtime, f"s{number}") for number in range(3)]
        for caller in callers:
            caller.open()
            caller.ask("a long story")
        await callers[0].wait_for(Produced, 2)
        runtime.kill_worker()
        for caller in callers:
            lost = await caller.wait_for(RuntimeLost)
            assert lost.reason == opener.killed
        assert runtime.capabilities is None
        assert not runtime.statistics().up
        callers[0].ask("is anyone there", response_id="lost")  # dropped, not queued for the next worker
        await runtime.wait_ready()
        for caller in callers:
            ready = await caller.wait_for(RuntimeReady)
            assert ready.capabilities == runtime.capabilities
            caller.open(epoch=2)
            caller.ask("hello", epoch=2, response_id="r2")
        for caller in callers:
            units = await caller.answered()
            assert [identify(unit.audio) for unit in units] == [Identity(2, 1, number) for number in range(6)]
            kinds = [type(message) for message in caller.got]
            lost_at = kinds.index(RuntimeLost)
            assert kinds[lost_at + 1] is RuntimeReady
            assert all(unit.response_id == "r2" for unit in caller.got[lost_at:] if isinstance(unit, Produced))
        assert runtime.statistics().restarts == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("die_at_unit", None), ("stall_at_unit", f"stalled: no sign of life for {STALL_TIMEOUT_S:g} s")],
)
async def test_a_model_that_dies_or_hangs_at_a_unit_is_lost_there(
    opener: Opener, fault: str, reason: str | None
) -> None:
    async with opener(**{fault: 2, "fault_epoch": 1}) as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("hello")
        assert (await caller.wait_for(RuntimeLost)).reason == (reason or opener.killed)
        assert [unit.unit for unit in caller.units()] in ([0, 1], [0], [])  # a dying process may not get to write
        await caller.wait_for(RuntimeReady)
        caller.open(epoch=2)
        caller.ask("hello", epoch=2, response_id="r2")
        assert len(await caller.answered()) == 6


async def test_a_failing_answer_costs_only_itself(opener: Opener) -> None:
    async with opener(fail_at_unit=2, fault_epoch=1) as runtime:
        caller, other = Caller(runtime), Caller(runtime, "other")
        caller.open()
        other.open(epoch=2)
        caller.ask("hello")
        other.ask("hello", epoch=2)
        failed = await caller.wait_for(LaneFailed)
        assert (failed.code, failed.response_id, len(caller.units())) == ("model_error", "r1", 2)
        assert len(await other.answered()) == 6
        caller.open_lane(2)
        caller.ask("again", epoch=2, response_id="r2")
        assert len(await caller.answered()) == 6
        assert not caller.of(RuntimeLost)


async def test_a_bad_model_may_speak_after_an_abort(opener: Opener) -> None:
    """Not a promise but a fault on order: sessions must drop this by its epoch."""
    async with opener(late_after_abort_ms=20) as runtime:
        caller = Caller(runtime)
        caller.open()
        caller.ask("a long story")
        await caller.wait_for(Produced, 2)
        caller.cut_off(1)
        await caller.barrier()
        before = len(caller.units())
        caller.open_lane(2)
        await caller.wait_for(Produced, before + 1)
        late = caller.units()[-1]
        assert (late.epoch, late.unit, identify(late.audio)) == (1, before, Identity(1, 1, before))


async def test_many_sessions_get_each_their_own(opener: Opener) -> None:
    async with opener() as runtime:
        callers = [Caller(runtime, f"s{number}") for number in range(40)]
        for number, caller in enumerate(callers):
            caller.open(epoch=number + 1)
            caller.ask(f"question {number} units={3 + number % 5}", epoch=number + 1)
        for number, caller in enumerate(callers):
            units = await caller.answered()
            wanted = [Identity(number + 1, 1, unit) for unit in range(3 + number % 5)]
            assert [identify(unit.audio) for unit in units] == wanted
            assert "".join(unit.text for unit in units).startswith(f"1 question {number} units=")
            assert {message.session for message in caller.got} == {caller.session}
        assert runtime.statistics().sessions == 40


async def test_the_newest_sink_wins_and_an_older_one_cannot_take_it_away(opener: Opener) -> None:
    async with opener() as runtime:
        first = Caller(runtime)
        second = Caller(runtime)
        runtime.unsubscribe("s", first.hear)
        second.open()
        await second.barrier()
        assert not first.got
        runtime.unsubscribe("s", second.hear)
        assert runtime.statistics().sessions == 0


async def test_unknown_sessions_are_ignored(opener: Opener) -> None:
    async with opener() as runtime:
        stranger, caller = Caller(runtime, "stranger"), Caller(runtime)
        stranger.ask("hello")
        stranger.cut_off(1)
        stranger.say(tone(100))
        caller.open()
        await caller.barrier()
        assert not stranger.got


async def test_an_input_clock_goes_on_from_where_the_session_stands(opener: Opener) -> None:
    async with opener() as runtime:
        caller = Caller(runtime)
        runtime.send(OpenSession("s", AudioFormat(), TurnDetection(silence_duration_ms=100), input_ms=60_000))
        caller.fed_ms = 60_000
        caller.say(tone(100) + silence(200))
        ended = await caller.wait_for(SpeechEnded)
        assert (ended.start_ms, ended.end_ms) == (60_000, 60_100)
