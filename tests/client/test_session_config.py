"""The ready-made session objects are taken by the dialect for which they are made, and mean what they say."""

from __future__ import annotations

import attrs
import pybase64

from adapters.client.session_config import (
    audio_data_url,
    cascade_session_config,
    minicpmo_session_config,
    moshi_session_config,
    openai_session_config,
    personaplex_session_config,
)
from adapters.wire.dialects import DUPLEX, OPENAI
from core.session.config import AudioFormat, SessionConfig


def opened(session: dict[str, object]) -> SessionConfig:
    return DUPLEX.open_config(session, DUPLEX.defaults)


def test_the_cascades() -> None:
    config = opened(cascade_session_config(instructions="Be kind.", voice="joe", overlap_policy="listen_only"))
    assert (config.instructions, config.voice, config.overlap_policy) == ("Be kind.", "joe", "listen_only")
    assert config.input_format == config.output_format == AudioFormat("pcm16", 24_000)
    assert config.turn_detection is not None
    assert opened(cascade_session_config(manual_turns=True)).turn_detection is None


def test_openais() -> None:
    look_up = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}
    session = openai_session_config(
        instructions="Be kind.",
        voice="joe",
        turn_detection={"type": "semantic_vad", "eagerness": "low"},
        tools=[look_up],
        tool_choice="required",
        max_output_tokens=99,
    )
    for dialect in (DUPLEX, OPENAI):
        config = dialect.open_config(session, dialect.defaults)
        assert (config.instructions, config.voice, config.max_output_tokens) == ("Be kind.", "joe", 99)
        assert config.turn_detection is not None
        assert config.turn_detection.type == "semantic_vad"
        assert ([tool.name for tool in config.tools], config.tool_choice) == (["look_up"], "required")
        assert config.output_modalities == ("audio",)
        written = dialect.open_config(openai_session_config(text_only=True, manual_turns=True), dialect.defaults)
        assert (written.output_modalities, written.turn_detection) == (("text",), None)


def test_those_of_models_that_decide_themselves() -> None:
    minicpmo = opened(minicpmo_session_config(instructions="Be brief.", ref_audio=audio_data_url(b"RIFF")))
    assert (minicpmo.instructions, minicpmo.input_format) == ("Be brief.", AudioFormat("pcm16", 16_000))
    assert minicpmo.turn_detection is None
    assert "data:audio" not in minicpmo.echo, "a reference voice is not given back"
    personaplex = opened(personaplex_session_config(persona="A pirate.", voice="NATF0"))
    assert (personaplex.instructions, personaplex.voice) == ("A pirate.", "NATF0")
    assert personaplex.input_format == AudioFormat("pcm_f32le", 24_000)
    assert opened(moshi_session_config(persona="A pirate.")) == attrs.evolve(personaplex, voice="")


def test_a_voice_as_a_data_url() -> None:
    head, _, data = audio_data_url(b"RIFF....WAVE").partition(",")
    assert head == "data:audio/wav;base64"
    assert pybase64.b64decode(data) == b"RIFF....WAVE"
