"""Every command, in every phase, with arguments that nobody in his right mind would send: legal, or a refusal from the one
table, and never an exception. What becomes an event can be written to a log and read back.

dev tries 300 sequences of up to 12 commands, ci 1,500, soak 50,000.
"""

from __future__ import annotations

import types
import typing
from typing import Any, get_args

import attrs
import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.session import commands as c
from core.session import events as e
from core.session.commands import Command
from core.session.config import SessionConfig, TurnDetection
from core.session.refusals import CODES
from core.session.sanity import ID_CHARS_MAX
from core.session.state import Phase
from store.codec import decode_row, encode_record
from tests.core.session.world import CLIENT_VAD, SERVER_VAD, World

COMMANDS: tuple[type, ...] = get_args(Command)
EXAMPLES = {"dev": 300, "ci": 1_500, "soak": 50_000}

HALF = "\ud800"
NUMBERS = (0, 1, -1, 7, 100, 480, 24_000, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, -(10**30))
TEXTS = (
    "",
    "hello",
    "\0",
    HALF,
    "é\U0001f600",
    "x" * (ID_CHARS_MAX + 1),
    "y" * 100_000,
    "null",
    "item_abc_1",
    "item_abc_2",
    "resp_abc_1",
    "user",
    "function_call_output",
    "speak",
    "completed",
    "text",
    "audio",
)
FLOATS = (0.0, -1.0, 0.5, 1e308, float("nan"), float("inf"), -float("inf"))

ints = st.one_of(st.sampled_from(NUMBERS), st.integers(0, 5), st.integers())
texts = st.one_of(st.sampled_from(TEXTS), st.text(st.characters(exclude_categories=()), max_size=8))
floats = st.one_of(st.sampled_from(FLOATS), st.floats())


def wild(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type, most of them absurd."""
    origin, arguments = typing.get_origin(hint), get_args(hint)
    if hint is int:
        return ints
    if hint is str:
        return texts
    if hint is float:
        return st.one_of(floats, ints)
    if hint is bool:
        return st.booleans()
    if hint is types.NoneType:
        return st.none()
    if origin in (types.UnionType, typing.Union):
        return st.one_of([wild(one) for one in arguments])
    if origin is tuple and arguments[-1] is ...:
        return st.lists(wild(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(wild, arguments))
    if hint is SessionConfig:
        return st.one_of(st.sampled_from([CLIENT_VAD, SERVER_VAD]), changed(CLIENT_VAD))
    assert attrs.has(hint), hint
    return built(hint)


def built(kind: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: wild(hints[field.name]) for field in attrs.fields(kind)})


def changed(config: SessionConfig) -> st.SearchStrategy[SessionConfig]:
    """A configuration with a wild setting or two."""
    hints = typing.get_type_hints(SessionConfig)
    one = st.sampled_from(sorted(hints)).flatmap(
        lambda name: st.tuples(st.just(name), wild(TurnDetection | None if name == "turn_detection" else hints[name]))
    )
    return st.lists(one, min_size=1, max_size=2).map(lambda changes: attrs.evolve(config, **dict(changes)))


commands = st.sampled_from(COMMANDS).flatmap(built)
phases = st.sampled_from([Phase.OPEN, Phase.OPEN, Phase.PAUSED, Phase.CLOSED])


def world_in(phase: Phase, config: SessionConfig) -> World:
    """A session in mid-answer."""
    world = World(config)
    world.ask()
    if config.turn_detection is not None:
        world.do(c.CreateResponse())
    world.make(3)
    world.deliver()
    world.wait(150)
    if phase is Phase.PAUSED:
        world.do(c.Pause())
    if phase is Phase.CLOSED:
        world.do(c.Close())
    return world


@pytest.mark.no_cover  # tracing makes it three times as long
@pytest.mark.limit(wall_s=900)
@hypothesis.settings(max_examples=EXAMPLES.get(hypothesis.settings.get_current_profile_name(), 300))
@given(phases, st.sampled_from([CLIENT_VAD, SERVER_VAD]), st.lists(commands, min_size=1, max_size=12))
def test_no_command_is_too_wild(phase: Phase, config: SessionConfig, wild_ones: list[Any]) -> None:
    world = world_in(phase, config)
    for command in wild_ones:
        try_it(world, command)


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.PAUSED, Phase.CLOSED], ids=lambda phase: phase.value)
@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_each_command_is_tried_in_each_phase(kind: type, phase: Phase) -> None:
    @hypothesis.settings(max_examples=25, database=None, derandomize=True)
    @given(built(kind))
    def each(command: Any) -> None:
        try_it(world_in(phase, CLIENT_VAD), command)

    each()


def try_it(world: World, command: Any) -> None:
    before = len(world.records)
    result = world.do(command)  # the world checks every promise
    assert result.refusal is None or result.refusal.code in CODES
    assert result.refusal is None or type(command) in c.CLIENT_COMMANDS
    for record in world.records[before:]:
        assert decode_row(encode_record(record)) == record


def test_a_client_is_told_which_field_cannot_be() -> None:
    world = World()
    told = [
        (c.AppendAudio("d", -1, 0, "ev-1"), "size_bytes"),
        (c.AppendAudio("d", 10, 11, "ev-2"), "samples"),
        (c.CreateItem("nobody", "x", "{}", event_id="ev-3"), "role"),
        (c.CreateItem("user", HALF, "{}", event_id="ev-4"), "text"),
        (c.CreateResponse(max_output_tokens=-5, event_id="ev-5"), "max_output_tokens"),
        (c.AckPlayback(2**63, event_id="ev-6"), "played_ms"),
        (c.DeleteItem("i" * (ID_CHARS_MAX + 1), "ev-7"), "item_id"),
    ]
    for command, field in told:
        refusal = world.do(command).refusal
        assert refusal is not None
        assert (refusal.code, refusal.param, refusal.event_id) == ("invalid_value", field, command.event_id)
    refusal = world.do(c.Pause("e" * (ID_CHARS_MAX + 1))).refusal
    assert refusal is not None
    assert (refusal.code, refusal.param, refusal.event_id) == ("invalid_value", "event_id", None)


def test_an_answer_of_which_the_model_talks_nonsense_fails_and_the_session_lives() -> None:
    world = world_in(Phase.OPEN, CLIENT_VAD)
    response_id = world.active.response_id
    world.do(c.ModelOutput(world.state.epoch, response_id, 3, "speak", HALF))
    (ended,) = world.events(e.ResponseEnded)
    assert (ended.response_id, ended.status, ended.reason) == (response_id, "failed", "model_error")
    assert world.state.phase is Phase.OPEN
    world.ask()
    world.do(c.ModelOutput(world.state.epoch - 1, response_id, 3, "speak", HALF))
    assert world.state.active is not None, "nonsense of a lane that is over is nobody's"
