"""``session.update``: what is merged, what is refused and by which name, and that what is taken can be shown."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wire.dialect import Dialect
from adapters.wire.dialects import DUPLEX, OPENAI
from adapters.wire.problems import Problem
from adapters.wire.settings import with_capabilities
from core.ports.runtime import Capabilities
from core.session.apply import apply
from core.session.config import AudioFormat, Tool, TurnDetection
from core.session.events import ConfigChanged, Record
from tests.wire.translated import ANY_JSON, BOTH, command, fresh, problem, updated

_DETECTION = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["server_vad", "semantic_vad"]),
        "eagerness": st.sampled_from(["low", "auto", "high"]),
        "threshold": st.floats(0.1, 1),
        "silence_duration_ms": st.integers(0, 2_000),
        "create_response": st.booleans(),
    },
)
_FORMAT = st.sampled_from(["pcm16", "g711_ulaw", "g711_alaw"]) | st.fixed_dictionaries(
    {"type": st.sampled_from(["audio/pcm", "audio/pcmu", "audio/pcma"])}, optional={"rate": st.integers(8_000, 50_000)}
)
_LIKELY: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("turn_detection", "audio.input.turn_detection"), st.none() | _DETECTION),
    **dict.fromkeys(
        ("input_audio_format", "output_audio_format", "audio.input.format", "audio.output.format"), _FORMAT
    ),
    "type": st.just("realtime"),
    "output_modalities": st.sampled_from([["text"], ["audio"], ["audio", "text"]]),
    "overlap_policy": st.sampled_from(["listen_only", "barge_in_on_speech"]),
    "sliding_window_mode": st.sampled_from(["off", "basic", "context"]),
    "idle_timeout_s": st.floats(1, 100),
    "tools": st.just([{"type": "function", "name": "look_up", "parameters": {"type": "object"}}]),
    "tool_choice": st.sampled_from(["auto", "none", {"type": "function", "name": "look_up"}]),
    "instructions": st.text(max_size=8),
    "voice": st.sampled_from(["joe", {"id": "joe"}, "default"]),
    "max_output_tokens": st.integers(1, 99) | st.just("inf"),
    "speed": st.floats(0.25, 1.5),
    "max_client_lead_ms": st.none() | st.integers(100, 9_000),
}
"""Settings and values that they are likely to have; a dot is a level."""
_SETTINGS = st.sampled_from(sorted({*_LIKELY, *DUPLEX.rules.setters, "tracing", "id", "mine"}))
_SETTING = _SETTINGS.flatmap(lambda name: st.tuples(st.just(name), _LIKELY.get(name, ANY_JSON)))


def nested(settings: list[tuple[str, Any]]) -> dict[str, Any]:
    session: dict[str, Any] = {}
    for name, value in settings:
        *levels, last = name.split(".")
        inside = session
        for level in levels:
            if not isinstance(inside.get(level), dict):
                inside[level] = {}
            inside = inside[level]
        inside[last] = value
    return session


@BOTH
@given(updates=st.lists(st.lists(_SETTING, max_size=3).map(nested), min_size=1, max_size=3))
def test_every_configuration_that_is_taken_can_be_shown_and_sent_back(
    dialect: Dialect, updates: list[dict[str, Any]]
) -> None:
    state = fresh(dialect)

    def shown() -> dict[str, Any]:
        session = dialect.make_projection().greeting(state, None)[0]["session"]
        return dict(json.loads(json.dumps(session, allow_nan=False)))

    def update(session: dict[str, Any]) -> None:
        config = command(dialect, {"type": "session.update", "session": session}, state).config
        apply(state, Record(state.position + 1, 1, state.at_ns, ConfigChanged(config)))

    for session in updates:
        before = state.config
        try:
            update(session)
        except Problem:
            assert state.config == before
            continue
        told = shown()
        update(told)
        assert shown() == told


def test_updates_are_merged_deeply_in_any_order() -> None:
    detection = {"audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 500}}}}
    tracing = {"type": "realtime", "tracing": "auto"}
    for changes in ((detection, tracing), (tracing, detection)):
        config = updated(OPENAI, *changes)
        assert config.turn_detection == TurnDetection(silence_duration_ms=500)
        shown = OPENAI.make_projection().greeting(fresh(OPENAI, config), None)[0]["session"]
        assert shown["tracing"] == "auto"
        assert shown["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
        assert shown["audio"]["input"]["turn_detection"]["interrupt_response"] is True


@BOTH
def test_the_context_window_is_set_by_the_duplex_dialects_names(dialect: Dialect) -> None:
    window = {
        "sliding_window_mode": "context",
        "basic_window_high_tokens": 900,
        "basic_window_low_tokens": 600,
        "context_previous_max_tokens": 0,
    }
    changes = {"extra_body": window} if dialect is DUPLEX else window
    config = updated(dialect, changes)
    assert (config.window_mode, config.window_high_tokens) == ("context", 900)
    assert (config.window_low_tokens, config.window_previous_tokens) == (600, 0)
    shown = dialect.make_projection().greeting(fresh(dialect, config), None)[0]["session"]
    assert {key: shown[key] for key in window} == window
    for bad in ({"sliding_window_mode": "large"}, {"basic_window_low_tokens": 9_000}):
        with pytest.raises(Problem) as caught:
            updated(dialect, bad)
        assert caught.value.code == "invalid_config"


def test_both_shapes_of_a_session_say_the_same() -> None:
    flat = {"input_audio_format": "g711_ulaw", "turn_detection": None, "voice": "joe", "max_response_output_tokens": 9}
    nested = {
        "audio": {
            "input": {"format": {"type": "audio/pcmu"}, "turn_detection": None},
            "output": {"voice": {"id": "joe"}},
        },
        "max_output_tokens": 9,
    }
    assert updated(OPENAI, flat) == updated(OPENAI, nested)
    assert updated(OPENAI, flat).input_format == AudioFormat("g711_ulaw", 8_000)


@BOTH
@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        (
            {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 7_999}}}},
            "invalid_value",
            "session.audio.input.format.rate",
        ),
        (
            {"audio": {"input": {"format": {"type": "audio/pcm", "rate": "x"}}}},
            "invalid_value",
            "session.audio.input.format.rate",
        ),
        ({"audio": {"input": {"format": "mp3"}}}, "unsupported_audio_format", "session.audio.input.format"),
        ({"audio": 5}, "invalid_value", "session.audio"),
        ({"instructions": 5}, "invalid_value", "session.instructions"),
        ({"output_modalities": ["smell"]}, "invalid_value", "session.output_modalities"),
        ({"turn_detection": {"type": "psychic"}}, "unsupported_turn_detection", "session.turn_detection.type"),
        (
            {"turn_detection": {"type": "server_vad", "threshold": 7}},
            "invalid_value",
            "session.turn_detection.threshold",
        ),
        ({"type": "transcription"}, "unsupported", "session.type"),
        ({"overlap_policy": "sometimes"}, "invalid_config", "session.overlap_policy"),
        ({"max_output_tokens": 0}, "invalid_value", "session.max_output_tokens"),
        ({"tools": [1]}, "invalid_value", "session.tools"),
        ({"temperature": 0.8}, "unsupported", "session.temperature"),
        ({"max_output_tokens": -(10**400)}, "invalid_value", "session.max_output_tokens"),
        (
            {"turn_detection": {"type": "semantic_vad", "eagerness": ["low"]}},
            "invalid_value",
            "session.turn_detection.eagerness",
        ),
        ({"extra": "x" * 300_000}, "invalid_value", "session"),
        ({"max_output_tokens": 1.5}, "invalid_value", "session.max_output_tokens"),
        ({"speed": 0.2}, "invalid_value", "session.speed"),
        ({"speed": 1.6}, "invalid_value", "session.speed"),
        ({"max_client_lead_ms": 99}, "invalid_value", "session.max_client_lead_ms"),
        ({"idle_timeout_s": 0.5}, "invalid_value", "session.idle_timeout_s"),
        (
            {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 5_000}},
            "unsupported_turn_detection",
            "session.turn_detection.idle_timeout_ms",
        ),
        ({"extra_body": {"ref_audio": "x"}}, "ref_audio_update_unsupported", "session.extra_body.ref_audio"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_setting_is_named(dialect: Dialect, session: dict[str, Any], code: str, param: str) -> None:
    found = problem(dialect, {"type": "session.update", "session": {"instructions": "new", **session}})
    assert (found.code, found.param) == (code, param)


@BOTH
def test_what_an_update_leaves_out_of_the_detection_stays_as_it_was(dialect: Dialect) -> None:
    first = {"turn_detection": {"type": "server_vad", "threshold": 0.7, "silence_duration_ms": 500}}
    padded = {"turn_detection": {"prefix_padding_ms": 100}}
    assert updated(dialect, first, padded).turn_detection == TurnDetection("server_vad", 0.7, 100, 500)
    other = updated(dialect, first, {"turn_detection": {"type": "semantic_vad"}}).turn_detection
    assert other == TurnDetection("semantic_vad", silence_duration_ms=800), "of another type, nothing is kept"
    eager = {"turn_detection": {"type": "semantic_vad", "eagerness": "high"}}
    again = updated(dialect, eager, {"turn_detection": {"type": "semantic_vad", "create_response": False}})
    assert again.turn_detection == TurnDetection("semantic_vad", silence_duration_ms=320, create_response=False)


@BOTH
def test_a_bare_name_of_the_present_encoding_keeps_its_rate(dialect: Dialect) -> None:
    fast = {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 48_000}}}}
    assert updated(dialect, fast, {"input_audio_format": "pcm16"}).input_format == AudioFormat("pcm16", 48_000)
    telephone = updated(dialect, fast, {"input_audio_format": "g711_alaw"})
    assert telephone.input_format == AudioFormat("g711_alaw", 8_000)
    usual = dialect.defaults.input_format
    assert updated(dialect, {"input_audio_format": "pcm16"}, config=telephone).input_format == usual


@BOTH
def test_what_steers_the_model_reaches_it_and_comes_back_as_it_was_written(dialect: Dialect) -> None:
    tools = [{"type": "function", "name": "look_up", "description": "Looks.", "parameters": {"type": "object"}}]
    choice = {"type": "function", "name": "look_up"}
    config = updated(dialect, {"tools": tools}, {"tool_choice": choice, "idle_timeout_s": 1.5})
    assert config.tools == (Tool("look_up", "Looks.", '{"type":"object"}'),)
    assert (config.tool_choice, config.idle_timeout_ms) == ("function:look_up", 1_500)
    shown = dialect.make_projection().greeting(fresh(dialect, config), None)[0]["session"]
    assert (shown["tools"], shown["tool_choice"], shown["idle_timeout_s"]) == (tools, choice, 1.5)
    assert updated(dialect, {"tools": None, "tool_choice": None}, config=config).tools == ()


@BOTH
def test_what_a_client_must_know_of_the_model_survives_its_updates(dialect: Dialect) -> None:
    model = Capabilities("scripted", unit_ms=320, prebuffer_ms=700)
    config = updated(dialect, {"instructions": "x"}, config=with_capabilities(dialect.defaults, model))
    shown = dialect.make_projection().greeting(fresh(dialect, config), None)[0]["session"]
    assert (shown["unit_ms"], shown["recommended_prebuffer_ms"]) == (320, 700)


COMPUTED = """
id object state turn_state epoch active_response_id playback capabilities unit_ms recommended_prebuffer_ms
supports_image_input supports_tool_calls expires_at session_id playback_commit_policy client_secret initial_user_text
""".split()  # noqa: SIM905


@BOTH
@pytest.mark.parametrize("name", COMPUTED)
def test_what_the_server_computes_is_not_taken_from_a_client(dialect: Dialect, name: str) -> None:
    config = updated(dialect, {name: "mine"})
    assert config == dialect.defaults or json.loads(config.echo) == {"client": {}, "runtime": {}}
    assert '"mine"' not in json.dumps(dialect.make_projection().greeting(fresh(dialect, config), None))


def test_unknown_settings_come_back_and_secrets_do_not() -> None:
    session = {"my_setting": {"a": [1]}, "ref_audio": "data:audio/wav;base64,AAAA", "extra_body": {"ref_audio": "x"}}
    config = DUPLEX.open_config(session, DUPLEX.defaults)
    shown = json.dumps(DUPLEX.make_projection().greeting(fresh(DUPLEX, config), None))
    assert '"my_setting": {"a": [1]}' in shown
    assert "ref_audio" not in shown


def test_a_session_object_that_is_sent_back_changes_nothing() -> None:
    for dialect in (OPENAI, DUPLEX):
        config = updated(dialect, {"instructions": "x", "turn_detection": {"type": "semantic_vad", "eagerness": "low"}})
        shown = dialect.make_projection().greeting(fresh(dialect, config), None)[0]["session"]
        again = updated(dialect, shown, config=config)
        assert dialect.make_projection().greeting(fresh(dialect, again), None)[0]["session"] == shown


def test_in_the_duplex_dialect_detection_decides_the_overlap_policy() -> None:
    assert updated(DUPLEX).overlap_policy == "listen_only"
    assert updated(DUPLEX, {"turn_detection": {"type": "server_vad"}}).overlap_policy == "barge_in_on_speech"
    nested = {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}
    assert updated(DUPLEX, nested, {"turn_detection": None}).overlap_policy == "listen_only"


def test_the_settings_may_stand_in_the_event_itself() -> None:
    made = command(DUPLEX, {"type": "session.update", "instructions": "be kind"})
    assert made.config.instructions == "be kind"


def test_another_model_is_the_machines_to_refuse() -> None:
    opened = DUPLEX.open_config({"model": "openbmb/MiniCPM-o-4_5"}, DUPLEX.defaults)
    assert opened.model == DUPLEX.defaults.model
    state = fresh(DUPLEX, opened)
    assert (
        command(DUPLEX, {"type": "session.update", "session": {"model": "openbmb/MiniCPM-o-4_5"}}, state).config
        == opened
    )
    assert command(DUPLEX, {"type": "session.update", "session": {"model": "other"}}, state).config.model == "other"
    assert updated(OPENAI, {"model": "gpt-realtime"}).model == OPENAI.defaults.model


@BOTH
def test_telephone_formats_name_their_rate_where_it_is_another(dialect: Dialect) -> None:
    def shown(rate: int) -> Any:
        wanted = {"audio": {"output": {"format": {"type": "audio/pcmu", "rate": rate}}}}
        session = dialect.make_projection().greeting(fresh(dialect, updated(dialect, wanted)), None)[0]["session"]
        return session["audio"]["output"]["format"]

    assert shown(8_000) == {"type": "audio/pcmu"}
    assert shown(16_000) == {"type": "audio/pcmu", "rate": 16_000}


def test_a_session_that_must_end_says_when() -> None:
    state = fresh(OPENAI, attrs.evolve(OPENAI.defaults, max_session_ms=90_000))
    session = OPENAI.make_projection().greeting(state, None)[0]["session"]
    assert session["expires_at"] == state.opened_ns // 10**9 + 90
