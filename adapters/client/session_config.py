"""Session objects for the models that a server of this dialect may host. Each is a plain dict, to be changed at will."""

from __future__ import annotations

import base64
from typing import Any

RATE = 24_000


def cascade_session_config(
    *,
    instructions: str = "",
    voice: str | None = None,
    turn_detection: dict[str, Any] | None = None,
    manual_turns: bool = False,
    overlap_policy: str | None = None,
) -> dict[str, Any]:
    """The default model: pcm16 at 24 kHz both ways; a detector closes turns unless ``manual_turns``."""
    detection = None if manual_turns else {"type": "server_vad", **(turn_detection or {})}
    config: dict[str, Any] = {
        "type": "realtime",
        "output_modalities": ["audio"],
        "audio": {
            "input": {"format": {"type": "audio/pcm", "rate": RATE}, "turn_detection": detection},
            "output": {"format": {"type": "audio/pcm", "rate": RATE}},
        },
    }
    if instructions:
        config["instructions"] = instructions
    if voice:
        config["audio"]["output"]["voice"] = voice
    if overlap_policy:
        config["overlap_policy"] = overlap_policy
    return config


def openai_session_config(
    *,
    instructions: str = "",
    voice: str | None = None,
    text_only: bool = False,
    turn_detection: dict[str, Any] | None = None,
    manual_turns: bool = False,
    tools: list[dict[str, Any]] | None = None,
    tool_choice: str | dict[str, Any] | None = None,
    max_output_tokens: int | None = None,
) -> dict[str, Any]:
    """Any model in the words of OpenAI's session object: functions that it may call, ``semantic_vad`` with its eagerness, a
    bound for an answer. A detector closes turns unless ``manual_turns``."""
    config = cascade_session_config(
        instructions=instructions, voice=voice, turn_detection=turn_detection, manual_turns=manual_turns
    )
    config["output_modalities"] = ["text"] if text_only else ["audio"]
    if tools is not None:
        config["tools"] = tools
    if tool_choice is not None:
        config["tool_choice"] = tool_choice
    if max_output_tokens is not None:
        config["max_output_tokens"] = max_output_tokens
    return config


def minicpmo_session_config(
    *,
    instructions: str = "",
    ref_audio: str | None = None,
    auto_response: bool = True,
    sliding_window_mode: str | None = None,
    rate: int = 16_000,
) -> dict[str, Any]:
    """MiniCPM-o 4.5: the model itself decides in each second whether it listens or speaks. ``ref_audio`` is a URI or a
    data URL of the voice to speak with (``audio_data_url``)."""
    extra: dict[str, Any] = {"auto_response": auto_response}
    if ref_audio is not None:
        extra["ref_audio"] = ref_audio
    if sliding_window_mode is not None:
        extra["sliding_window_mode"] = sliding_window_mode
    config: dict[str, Any] = {
        "modalities": ["text", "audio"],
        "input_audio_format": "pcm16",
        "sample_rate_hz": rate,
        "output_audio_format": "pcm16",
        "extra_body": extra,
    }
    if instructions:
        config["instructions"] = instructions
    return config


def personaplex_session_config(*, persona: str = "", voice: str | None = None) -> dict[str, Any]:
    """PersonaPlex: 24 kHz float samples in, a persona for instructions, a voice by its name."""
    config: dict[str, Any] = {
        "modalities": ["text", "audio"],
        "input_audio_format": "pcm_f32le",
        "sample_rate_hz": RATE,
        "output_audio_format": "pcm16",
        "extra_body": {"auto_response": True},
    }
    if persona:
        config["instructions"] = persona
    if voice:
        config["voice"] = voice
    return config


def moshi_session_config(*, persona: str = "") -> dict[str, Any]:
    """Moshi: as PersonaPlex, with its one voice."""
    return personaplex_session_config(persona=persona)


def audio_data_url(wav: bytes) -> str:
    """A WAV file as a data URL."""
    return "data:audio/wav;base64," + base64.b64encode(wav).decode("ascii")
