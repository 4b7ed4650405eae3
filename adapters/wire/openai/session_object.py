"""The ``session`` object: the whole effective configuration, in GA's shape with a few additions."""

from __future__ import annotations

from typing import Any

from adapters.wire.settings import detection_object, format_object, read_echo
from core.session.state import SessionState

ECHOED = ("tools", "tool_choice", "tracing", "truncation", "prompt", "include", "parallel_tool_calls", "reasoning")
"""Settings that are given back as they came. Most steer nothing here; of tools and their choice the machine has its own
reading beside them (``SessionConfig.tools``)."""

_DEFAULTS: dict[str, Any] = {"tools": [], "tool_choice": "auto", "truncation": "auto"}

NAMED_APART = frozenset({"eagerness", "speed", "input_audio_transcription", "input_audio_noise_reduction"})
"""Of the echoed settings, those that have their place inside ``audio``."""


def session_object(state: SessionState) -> dict[str, Any]:
    """What session.created and session.updated carry."""
    config = state.config
    client, runtime = read_echo(config)
    shape: dict[str, Any] = {
        "type": "realtime",
        "object": "realtime.session",
        "id": state.session_id,
        "model": config.model,
        "output_modalities": list(config.output_modalities),
        "instructions": config.instructions,
        "audio": audio_object(state, client),
        "max_output_tokens": config.max_output_tokens or "inf",
        **{key: client.get(key, _DEFAULTS.get(key)) for key in ECHOED},
        **tuning_object(state),
        **runtime,
    }
    if config.temperature is not None:
        shape["temperature"] = config.temperature
    if config.max_session_ms is not None:
        shape["expires_at"] = state.opened_ns // 1_000_000_000 + config.max_session_ms // 1000
    shape.update({key: value for key, value in client.items() if key not in shape and key not in NAMED_APART})
    return shape


def audio_object(state: SessionState, client: dict[str, Any]) -> dict[str, Any]:
    """``session.audio``."""
    config = state.config
    return {
        "input": {
            "format": format_object(config.input_format),
            "transcription": client.get("input_audio_transcription"),
            "noise_reduction": client.get("input_audio_noise_reduction"),
            "turn_detection": detection_object(config.turn_detection, client),
        },
        "output": {
            "format": format_object(config.output_format),
            "voice": config.voice or "default",
            "speed": client.get("speed", 1.0),
        },
    }


def tuning_object(state: SessionState) -> dict[str, Any]:
    """What this server lets its clients tune beyond OpenAI's settings."""
    config = state.config
    return {
        "overlap_policy": config.overlap_policy,
        "overlap_short_ack_ms": config.overlap_short_ack_ms,
        "overlap_barge_in_ms": config.overlap_barge_in_ms,
        "overlap_silence_rms": config.overlap_silence_rms,
        "unacked": config.unacked,
        "context_on_barge_in": config.context_on_barge_in,
        "sliding_window_mode": config.window_mode,
        "basic_window_high_tokens": config.window_high_tokens,
        "basic_window_low_tokens": config.window_low_tokens,
        "context_previous_max_tokens": config.window_previous_tokens,
        "idle_timeout_s": config.idle_timeout_ms / 1000,
        "max_client_lead_ms": config.max_client_lead_ms,
    }
