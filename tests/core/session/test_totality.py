"""Tables are total: an answer for every command in every phase, a fold for every event, a code for every refusal."""

from __future__ import annotations

from typing import Any, get_args

import attrs
import pytest

from core.session import commands as c
from core.session import events as e
from core.session.apply import _APPLY, LogBroken, apply, fold
from core.session.commands import Command
from core.session.config import AudioFormat, SessionConfig
from core.session.legality import LEGAL, PHASE_CODES
from core.session.machine import _DECIDE, decide, step
from core.session.react import _REACT, effects_of
from core.session.refusals import CODES, Refusal, refuse
from core.session.state import Phase, SessionState
from tests.core.session.world import CLIENT_VAD, START_NS, World

COMMANDS = get_args(Command)

ONE_OF_EACH_COMMAND: tuple[Any, ...] = (
    c.AppendAudio("d", 480, 240),
    c.AppendPart("text", text="so"),
    c.ClearInput(),
    c.CommitInput(True),
    c.CreateResponse(),
    c.CancelOutput("barge_in"),
    c.JudgeOverlap("barge_in", "client_force_barge_in"),
    c.CreateItem("user", "hello", "{}"),
    c.DeleteItem("item_none"),
    c.RetrieveItem("item_none"),
    c.AckPlayback(100),
    c.UpdateConfig(CLIENT_VAD),
    c.Pause(),
    c.Unpause(),
    c.Touch(),
    c.Close(),
    c.SpeechHeard(1, 0),
    c.SpeechContinues(1, 500),
    c.SpeechFinished(1, 0, 500, "hello"),
    c.TurnHeard("item_none", "hello"),
    c.ModelSpeaks(1),
    c.ModelOutput(1, "resp_abc_1", 0, "speak", "hi", "o", 4_800, 24_000, 2_400),
    c.ModelCall(1, "resp_abc_1", "call-1", "look_up", "{}"),
    c.ModelDone(1, "resp_abc_1"),
    c.LoseRuntime("killed"),
    c.GainRuntime(),
    c.Attach("hash"),
    c.ConfirmToken(1),
    c.Detach(1, "gone"),
    c.FireDeadline(),
    c.FailOutput(),
)

ONE_OF_EACH_EVENT: tuple[Any, ...] = (
    e.SessionOpened("duplex-abc", "duplex", 1, CLIENT_VAD),
    e.ConfigChanged(CLIENT_VAD),
    e.SessionClosed("client_close"),
    e.OwnerChanged(2, "b"),
    e.Attached(1, "hash", 3, (("resp_none", 10),)),
    e.TokenConfirmed(1),
    e.Detached(1, 0, "gone", "resp_none", 10),
    e.Append("audio", "d", 480, 0, 10, 240),
    e.InputCleared(),
    e.SpeechStarted(1, 0, "item_1"),
    e.SpeechStopped(1, 10, "item_1"),
    e.InputTranscript("item_none", "x"),
    e.OverlapDecided("drop", "silence_or_noise"),
    e.Commit("item_1", "client", 0, 10, True, True),
    e.LaneOpened((("item_1", 3),)),
    e.LaneTruncated("item_1", 1),
    e.WindowSlid(1, 2, 1),
    e.ResponseStarted("resp_1", "item_2", "commit", "item_1"),
    e.Output("resp_none", 0, "speak"),
    e.ToolCalled("resp_none", "item_3", "call", "name", "{}"),
    e.ResponseEnded("resp_none", "completed"),
    e.EpochBump(2, "barge_in", "cut", 0, "resp_none", 10),
    e.OutputInvalidated("resp_none", 10),
    e.PlaybackAck("resp_none", 1, 1, 1),
    e.ItemCreated("item_9", "user", "x", "{}"),
    e.ItemDeleted("item_none"),
    e.ItemRetrieved("item_none"),
    e.Refused("item_unknown", "no"),
    e.Touched(),
    e.Paused(),
    e.Unpaused(),
    e.DeadlineFired("idle_ttl_expired"),
    e.RuntimeChanged(True),
    e.Erased(("item_none",)),
)


def test_the_samples_hold_one_of_each() -> None:
    assert {type(command) for command in ONE_OF_EACH_COMMAND} == set(COMMANDS)
    assert {type(event) for event in ONE_OF_EACH_EVENT} == set(e.EVENT_TYPES.values()) == set(get_args(e.Event))


def test_every_command_is_decided_and_has_its_phases() -> None:
    assert set(_DECIDE) == set(LEGAL) == set(COMMANDS)
    assert set(c.CLIENT_COMMANDS) <= set(COMMANDS)
    assert set(PHASE_CODES) == set(Phase) - {Phase.OPEN}


def test_every_event_is_folded_and_tagged_once() -> None:
    assert set(_APPLY) == set(e.EVENT_TYPES.values())
    assert set(_REACT) <= set(_APPLY)
    assert set(e.SCHEMA_VERSIONS) == set(e.EVENT_TYPES)
    assert len(e.TAGS) == len(e.EVENT_TYPES)


@pytest.mark.parametrize("event", ONE_OF_EACH_EVENT, ids=lambda event: type(event).__name__)
def test_the_fold_takes_any_event_in_any_state(event: Any) -> None:
    """Whatever the log says is taken as it is, also where this machine would never have written it."""
    busy = World()
    busy.ask()
    busy.make(2)
    for state in (SessionState(), busy.state):
        record = e.Record(state.position + 1, state.epoch, START_NS, event)
        effects_of(record, apply(state, record))


def _world_in(phase: Phase) -> World:
    world = World()
    if phase is Phase.PAUSED:
        world.do(c.Pause())
    if phase is Phase.CLOSED:
        world.do(c.Close())
    return world


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.PAUSED, Phase.CLOSED], ids=lambda phase: phase.value)
@pytest.mark.parametrize("command", ONE_OF_EACH_COMMAND, ids=lambda command: type(command).__name__)
def test_every_command_in_every_phase_has_an_answer(command: Any, phase: Phase) -> None:
    world = _world_in(phase)
    legal = phase in LEGAL[type(command)]
    result = world.do(command)  # the world checks that a refusal is one of the table's
    if legal:
        return
    if type(command) in c.CLIENT_COMMANDS:
        assert result.refusal is not None
        assert result.refusal.code == PHASE_CODES[phase]
    else:
        assert result.records == ()


@pytest.mark.parametrize("command", ONE_OF_EACH_COMMAND, ids=lambda command: type(command).__name__)
def test_nothing_happens_before_a_session_is_opened(command: Any) -> None:
    answer = decide(SessionState(), command, 0, c.Cursor())
    assert answer == () or (isinstance(answer, Refusal) and answer.code == "session_not_open")


def test_refusals_come_from_the_table_only() -> None:
    assert refuse("item_unknown", "ev", "item_id", "Look again.").message.endswith("Look again.")
    with pytest.raises(AssertionError):
        Refusal("made_up", "no such code")


def _after(*before: Any, config: SessionConfig = CLIENT_VAD) -> World:
    """A world in which these commands were decided before."""
    world = World(config)
    for command in before:
        world.do(command)
    return world


SPOKEN = c.AppendAudio("d", 480, 240)
NARROW = attrs.evolve(CLIENT_VAD, input_format=AudioFormat("pcm16", 16_000))

ONE_OF_EACH_REFUSAL: dict[str, tuple[World, Any]] = {
    "session_not_open": (_after(c.Close()), c.ClearInput()),
    "session_paused": (_after(c.Pause()), SPOKEN),
    "invalid_value": (_after(), c.AppendAudio("d", -1, 0)),
    "input_empty": (_after(), c.CommitInput()),
    "input_unsupported": (_after(c.GainRuntime(0, ("text",))), SPOKEN),
    "input_too_large": (_after(config=attrs.evolve(CLIENT_VAD, max_pending_input_bytes=100)), SPOKEN),
    "too_many_pending_commits": (
        _after(*[SPOKEN, c.CommitInput(True)] * 2, SPOKEN, config=attrs.evolve(CLIENT_VAD, max_pending_commits=1)),
        c.CommitInput(True),
    ),
    "response_active": (_after(c.CreateResponse()), c.CreateResponse()),
    "response_not_active": (_after(), c.CancelOutput("client_cancelled")),
    "response_unknown": (_after(), c.AckPlayback(0, response_id="resp_none")),
    "item_unknown": (_after(), c.DeleteItem("item_none")),
    "item_exists": (_after(c.CreateItem("user", "a", "{}", "mine")), c.CreateItem("user", "b", "{}", "mine")),
    "item_not_audio": (
        _after(c.CreateItem("user", "a", "{}", "mine")),
        c.AckPlayback(0, item_id="mine", truncate=True),
    ),
    "previous_item_unknown": (_after(), c.CreateItem("user", "a", "{}", None, "item_none")),
    "model_update_unsupported": (_after(), c.UpdateConfig(attrs.evolve(CLIENT_VAD, model="x"))),
    "voice_update_after_audio": (
        _after(c.CreateResponse(), c.ModelOutput(1, "resp_abc_1", 0, "speak", "hi", "o", 4_800, 24_000, 2_400)),
        c.UpdateConfig(attrs.evolve(CLIENT_VAD, voice="x")),
    ),
    "input_format_update_pending": (_after(SPOKEN), c.UpdateConfig(NARROW)),
    "invalid_config": (_after(), c.UpdateConfig(attrs.evolve(CLIENT_VAD, unacked=""))),
    "runtime_unavailable": (_after(c.LoseRuntime("killed")), c.CreateResponse()),
}


def test_every_refusal_of_the_table_can_happen() -> None:
    assert set(ONE_OF_EACH_REFUSAL) == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_a_refusal_answers_its_command_and_changes_nothing_else(code: str) -> None:
    world, command = ONE_OF_EACH_REFUSAL[code]
    state = attrs.asdict(world.state)
    refusal = world.do(command).refusal
    assert refusal is not None
    assert refusal.code == code
    changed = {name for name, value in attrs.asdict(world.state).items() if value != state[name]}
    assert changed <= {"position", "at_ns", "activity_ns"}


def test_a_hole_in_the_log_is_the_stores_fault() -> None:
    with pytest.raises(LogBroken):
        fold([e.Record(2, 0, 0, e.Paused())])


def test_a_refusal_changes_only_the_log() -> None:
    world = World()
    step(world.state, c.DeleteItem("item_none", "ev-1"), world.now_ns, c.Cursor())
    assert world.state.event_ids == {"ev-1": None}
    assert world.state.items == {}


def test_a_clock_that_steps_back_is_held() -> None:
    world = World()
    world.wait(-3_600_000)
    result = world.say()
    assert result.records[0].at_ns == START_NS
