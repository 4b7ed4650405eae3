"""Commands, acks, outputs and failures in any order: the world checks every promise after every step.

``HYPOTHESIS_PROFILE``: dev runs 100 programs of at most 50 steps, ci 2,400, soak 26,000. Hypothesis ends some programs early
(40 steps are usual), so programs and steps are counted: a hunt that is cut short is no hunt. ci takes at least as many
steps as 2,000 programs of 50, soak 1,000,000. Both say how far they have come. A program that fails is printed as calls
of the rules below; pasted into a test, it runs again.
"""

from __future__ import annotations

import sys
import time
from typing import Any, ClassVar

import attrs
import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from core.session import commands as c
from core.session import events as e
from core.session.config import INPUT_KINDS, AudioFormat, SessionConfig, TurnDetection
from core.session.state import Phase
from tests.core.session.promises import check_replay_from_the_start
from tests.core.session.world import RATE, World

PROGRAMS = {"dev": 100, "ci": 2_400, "soak": 26_000}
STEPS = 50
LEAST = {"dev": (100, 2_000), "ci": (2_000, 100_000), "soak": (20_000, 1_000_000)}
"""Programs, and the steps that they take all together."""

SAY_EVERY = 100_000
"""Steps, in a long run."""

TURN_DETECTIONS = (
    None,
    TurnDetection(),
    TurnDetection(create_response=False),
    TurnDetection(interrupt_response=False),
)
CONFIGS = tuple(
    SessionConfig(
        turn_detection=detection,
        overlap_policy=policy,
        unacked=unacked,
        context_on_barge_in=context,
        max_pending_commits=2,
        max_pending_input_bytes=60_000,
        max_session_ms=limit_ms,
    )
    for detection in TURN_DETECTIONS
    for policy in ("barge_in_on_speech", "listen_only")
    for unacked, context, limit_ms in (
        ("assume_elapsed", "heard", None),
        ("heard_nothing", "heard", 600_000),
        ("assume_elapsed", "empty", None),
    )
)
TEXT_ONLY = attrs.evolve(CONFIGS[0], output_modalities=("text",))
NARROW = tuple(
    attrs.evolve(
        config,
        window_mode=mode,
        window_high_tokens=70,
        window_low_tokens=50,
        window_previous_tokens=25,
        instructions="hi",
    )
    for config in (CONFIGS[0], CONFIGS[6])
    for mode in ("basic", "context", "off")
)
"""A window of a few turns."""

event_ids = st.one_of(st.none(), st.sampled_from(["ev-1", "ev-2", "ev-3"]))
some_ms = st.sampled_from([0, 1, 40, 100, 250, 700, 1_200, 5_000])
odd_ms = st.one_of(some_ms, st.integers(-(10**6), 10**12))
places = st.integers(0, 5)


class AnyOrder(RuleBasedStateMachine):
    """One session, and everybody who can do something to it."""

    world: World
    programs: ClassVar[int] = 0
    steps: ClassVar[int] = 0
    """Run and taken so far."""

    @invariant()
    def count(self) -> None:
        AnyOrder.steps += 1
        if AnyOrder.steps % SAY_EVERY == 0:
            say_how_far()

    @initialize(config=st.sampled_from((*CONFIGS, TEXT_ONLY, *NARROW)), runtime=st.booleans())
    def open(self, config: SessionConfig, runtime: bool) -> None:
        AnyOrder.programs += 1
        self.world = World(config, runtime=runtime)
        self.segment = 0

    def teardown(self) -> None:
        if hasattr(self, "world"):
            check_replay_from_the_start(self.world)

    # -- time and delivery -------------------------------------------------------------------------------------

    @rule(ms=some_ms)
    def wait(self, ms: int) -> None:
        self.world.wait(ms)

    @rule(ms=st.sampled_from([-3_600_000, 61_000, 400_000]))
    def jump(self, ms: int) -> None:
        self.world.wait(ms)

    @rule(frames=st.sampled_from([1, 2, 5, 1_000]))
    def deliver(self, frames: int) -> None:
        self.world.deliver(frames)

    # -- the client --------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([0, 20, 200, 900]), event_id=event_ids, hint=st.sampled_from([None, None, True, False]))
    def say(self, ms: int, event_id: str | None, hint: bool | None) -> None:
        self.world.say(ms, event_id=event_id, is_speech=hint)

    @rule(kind=st.sampled_from(["image", "image", "text", "reference_audio"]), size=st.sampled_from([100, 30_000]))
    def show(self, kind: str, size: int) -> None:
        self.world.show(kind, size)

    @rule(create=st.sampled_from([True, True, None, False]), event_id=event_ids)
    def commit(self, create: bool | None, event_id: str | None) -> None:
        self.world.do(c.CommitInput(create, event_id))

    @rule(out_of_band=st.sampled_from([False, False, True]), text=st.sampled_from([False, False, True]))
    def create(self, out_of_band: bool, text: bool) -> None:
        modalities = ("text",) if text else None
        self.world.do(c.CreateResponse(out_of_band=out_of_band, modalities=modalities))

    @rule(
        reason=st.sampled_from(["client_cancelled", "barge_in", "output_audio_buffer_clear"]),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        always=st.booleans(),
        named=st.sampled_from([None, None, 0, 1]),
        event_id=event_ids,
    )
    def cancel(
        self, reason: str, flags: tuple[bool, bool, bool], always: bool, named: int | None, event_id: str | None
    ) -> None:
        response_id = None if named is None else self._response_id(named)
        self.world.do(c.CancelOutput(reason, response_id, *flags, event_id, always))

    @rule(played=odd_ms, committed=st.one_of(st.none(), odd_ms), of=places, by_item=st.booleans(), cut=st.booleans())
    def ack(self, played: int, committed: int | None, of: int, by_item: bool, cut: bool) -> None:
        response_id = self._response_id(of)
        response = self.world.state.responses.get(response_id or "")
        item_id = response.item_id if response is not None and by_item else None
        response_id = None if item_id else response_id
        self.world.do(c.AckPlayback(played, None if cut else committed, response_id, item_id, cut))

    @rule(of=places)
    def ack_what_was_sent(self, of: int) -> None:
        response_id = self._response_id(of)
        if response_id is not None:
            self.world.do(c.AckPlayback(10**9, response_id=response_id))

    @rule(place=places, after=st.sampled_from([None, None, "root", 0, 1]), item_id=st.sampled_from([None, "a", "b"]))
    def create_item(self, place: int, after: str | int | None, item_id: str | None) -> None:
        before = self._item_id(after) if isinstance(after, int) else after
        role = ("user", "system", "assistant", "function_call_output")[place % 4]
        images = (self.world.image(1_500_000), self.world.image(10)) if place == 4 else ()
        self.world.do(c.CreateItem(role, "hello", "{}", item_id, before, images=images))

    @rule(place=places, retrieve=st.booleans(), event_id=event_ids)
    def touch_item(self, place: int, retrieve: bool, event_id: str | None) -> None:
        item_id = self._item_id(place) or "item_none"
        self.world.do((c.RetrieveItem if retrieve else c.DeleteItem)(item_id, event_id))

    @rule(
        config=st.sampled_from((*CONFIGS, *NARROW)),
        bad=st.sampled_from([{}, {}, {"voice": "b"}, {"model": "x"}, {"unacked": ""}]),
    )
    def configure(self, config: SessionConfig, bad: dict[str, Any]) -> None:
        self.world.do(c.UpdateConfig(attrs.evolve(config, **bad)))

    @rule(rate=st.sampled_from([8_000, 16_000]))
    def change_format(self, rate: int) -> None:
        config = attrs.evolve(self.world.state.config, input_format=AudioFormat("pcm16", rate))
        self.world.do(c.UpdateConfig(config))

    @rule(event_id=event_ids)
    def clear(self, event_id: str | None) -> None:
        self.world.do(c.ClearInput(event_id))

    @rule()
    def touch(self) -> None:
        self.world.do(c.Touch())

    @rule(event_id=event_ids)
    def pause_or_go_on(self, event_id: str | None) -> None:
        paused = self.world.state.phase is Phase.PAUSED
        self.world.do(c.Unpause(event_id) if paused else c.Pause(event_id))

    # -- the runtime -------------------------------------------------------------------------------------------

    @rule(fresh=st.booleans(), back_ms=some_ms)
    def hear(self, fresh: bool, back_ms: int) -> None:
        self.segment += fresh
        self.world.do(c.SpeechHeard(self.segment, max(0, self.world.state.input.now_ms - back_ms)))

    @rule(action=st.sampled_from(["barge_in", "listen", "drop"]))
    def judge(self, action: str) -> None:
        self.world.do(c.JudgeOverlap(action, "client_overlap_action"))

    @rule(ms=some_ms)
    def hear_on(self, ms: int) -> None:
        self.world.do(c.SpeechContinues(self.segment, ms))

    @rule(
        ms=some_ms,
        text=st.sampled_from(["what is it", "mm-hmm", "", None]),
        ago_ms=st.sampled_from([0, 0, 10, 300, -50]),
    )
    def hear_end(self, ms: int, text: str | None, ago_ms: int) -> None:
        """The detector may be late, or ahead of a client that has stopped sending."""
        end_ms = max(0, self.world.state.input.now_ms - ago_ms)
        self.world.do(c.SpeechFinished(self.segment, end_ms - ms, end_ms, text))

    @rule(place=places)
    def transcribe(self, place: int) -> None:
        self.world.do(c.TurnHeard(self._item_id(place) or "item_none", "what they said"))

    @rule(back=st.integers(0, 1))
    def speak_up(self, back: int) -> None:
        self.world.do(c.ModelSpeaks(self.world.state.epoch - back))

    @precondition(lambda self: self.world.state.active is not None)
    @rule()
    def listen(self) -> None:
        active = self.world.active
        self.world.do(c.ModelOutput(self.world.state.epoch, active.response_id, active.units, "listen"))

    @precondition(lambda self: self.world.state.active is not None)
    @rule(units=st.integers(1, 4), audio_ms=st.sampled_from([100, 100, 0, 37]), marks=st.booleans())
    def make(self, units: int, audio_ms: int, marks: bool) -> None:
        spoken = "audio" in self.world.active.modalities
        self.world.make(units, audio_ms=audio_ms if spoken else 0, marks=marks and spoken)

    @precondition(lambda self: self.world.state.active is not None)
    @rule(name=st.sampled_from(["look_up", "look_up", "look_up", ""]), call_id=st.sampled_from(["", "c1", "c2"]))
    def call(self, name: str, call_id: str) -> None:
        self.world.call(name, "{}", call_id)

    @rule(back=st.integers(0, 2), of=places)
    def call_late(self, back: int, of: int) -> None:
        response_id = self._response_id(of) or "resp_none"
        self.world.do(c.ModelCall(self.world.state.epoch - back, response_id, "", "look_up", "{}"))

    @rule(
        back=st.integers(0, 2), of=places, samples=st.sampled_from([0, 2_400]), rate=st.sampled_from([RATE, 48_000, 0])
    )
    def make_late(self, back: int, of: int, samples: int, rate: int) -> None:
        """Output of a lane that may be over, at a rate that may be wrong."""
        response_id = self._response_id(of) or "resp_none"
        response = self.world.state.responses.get(response_id)
        text_only = response is not None and "audio" not in response.modalities
        if text_only or (response is not None and response.text and not response.marks):
            return  # marks are all or nothing in an answer, and an answer in text has no sound
        command = c.ModelOutput(
            self.world.state.epoch - back, response_id, 0, "speak", "", "d", 2 * samples, rate, samples
        )
        self.world.do(command)

    @rule(back=st.integers(0, 1), of=places, status=st.sampled_from(["completed", "completed", "incomplete", "failed"]))
    def done(self, back: int, of: int, status: str) -> None:
        response_id = self._response_id(of) or "resp_none"
        usage = (None, (0, 0), (30, 5), (90, 5))[of % 4]
        self.world.do(c.ModelDone(self.world.state.epoch - back, response_id, status, usage=usage))

    @rule(up=st.booleans(), tokens=st.sampled_from([0, 0, 8_000, 200, 60]), sees=st.booleans(), cuts=st.booleans())
    def runtime(self, up: bool, tokens: int, sees: bool, cuts: bool) -> None:
        inputs = INPUT_KINDS if sees else ("audio",)
        self.world.do(c.GainRuntime(tokens, inputs, cuts) if up else c.LoseRuntime("killed"))

    # -- sockets and servers -----------------------------------------------------------------------------------

    @rule(back=st.sampled_from([0, 0, 1, 3, 10]))
    def resume(self, back: int) -> None:
        if self.world.state.phase is not Phase.CLOSED:
            self.world.resume(max(0, self.world.number - back))

    @rule(back=st.sampled_from([0, 0, 1, 3, 10]))
    def take_over(self, back: int) -> None:
        if self.world.state.phase is not Phase.CLOSED:
            self.world.move_server(max(0, self.world.number - back))

    @rule(back=st.integers(0, 1), confirm=st.booleans())
    def detach(self, back: int, confirm: bool) -> None:
        generation = self.world.state.attachment.generation - back
        self.world.do(c.ConfirmToken(generation) if confirm else c.Detach(generation, "gone"))

    @rule()
    def deadline(self) -> None:
        self.world.do(c.FireDeadline())

    @rule()
    def backpressure(self) -> None:
        self.world.do(c.FailOutput())

    @precondition(lambda self: len(self.world.records) > 60)
    @rule()
    def close(self) -> None:
        self.world.do(c.Close())

    # -- names -------------------------------------------------------------------------------------------------

    def _response_id(self, back: int) -> str | None:
        ids = list(self.world.state.responses)
        return ids[-1 - back % len(ids)] if ids else None

    def _item_id(self, place: int) -> str | None:
        ids = list(self.world.state.items)
        return ids[-1 - place % len(ids)] if ids else None


def say_how_far() -> None:
    """On the terminal, whatever pytest captures: a long run that is killed has shown what it did."""
    cpu_s = time.process_time()
    print(f"\n{AnyOrder.programs:,} programs, {AnyOrder.steps:,} steps, {cpu_s:,.0f} s of CPU", file=sys.__stderr__)


@pytest.mark.no_cover  # tracing makes it three times as long; the stories cover the same lines
@pytest.mark.limit(wall_s=900)
def test_every_promise_holds_whatever_the_order() -> None:
    profile = hypothesis.settings.get_current_profile_name()
    settings = hypothesis.settings(max_examples=PROGRAMS.get(profile, 100), stateful_step_count=STEPS)
    AnyOrder.programs = AnyOrder.steps = 0
    run_state_machine_as_test(AnyOrder, settings=settings)  # type: ignore[no-untyped-call]
    if profile != "dev":
        say_how_far()
    programs, steps = LEAST.get(profile, (0, 0))
    assert AnyOrder.programs >= programs
    assert AnyOrder.steps >= steps


def test_the_world_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A promise that is broken is noticed: here an event is written twice, and then an answer has two ends."""
    world = World()
    world.ask()
    world.finish()
    world.ends["resp_abc_1"] += 1
    with pytest.raises(AssertionError, match="one-end"):
        world.say()
    world.ends["resp_abc_1"] -= 1
    world.state.items.clear()
    with pytest.raises(AssertionError, match="replay-is-live"):
        world.do(c.Pause())
    assert isinstance(world.records[-1].event, e.Paused)
