"""The duplex ``session`` object: configuration, where the session stands, and what it can do."""

from __future__ import annotations

from typing import Any

from adapters.wire.openai.session_object import ECHOED, NAMED_APART, audio_object, tuning_object
from adapters.wire.seen import turn_state
from adapters.wire.settings import detection_object, read_echo
from core.session.state import Phase, Response, SessionState

_STATES = {Phase.NEW: "open", Phase.OPEN: "open", Phase.PAUSED: "paused", Phase.CLOSED: "closed"}


def session_object(state: SessionState) -> dict[str, Any]:
    """What session.created, session.updated and session.resumed carry."""
    config = state.config
    client, runtime = read_echo(config)
    active = state.active
    audio = audio_object(state, client)
    audio["input"]["sample_rate_hz"] = config.input_format.rate
    audio["output"]["sample_rate_hz"] = config.output_format.rate
    modalities = list(config.output_modalities)
    shape: dict[str, Any] = {
        "object": "realtime.session",
        "type": "realtime",
        "id": state.session_id,
        "state": _STATES[state.phase],
        "turn_state": turn_state(state),
        "epoch": state.epoch,
        "active_response_id": active.response_id if active else None,
        "model": config.model,
        "modalities": modalities,
        "output_modalities": modalities,
        "instructions": config.instructions,
        "voice": config.voice or None,
        "temperature": config.temperature,
        "max_tokens": config.max_output_tokens,
        "playback_commit_policy": "ack_only",
        "playback": playback_object(state.last_response),
        "capabilities": capabilities_object(runtime),
        "input_audio_format": config.input_format.encoding,
        "output_audio_format": config.output_format.encoding,
        "audio": audio,
        "turn_detection": detection_object(config.turn_detection, client),
        "input_audio_transcription": client.get("input_audio_transcription"),
        **{key: client[key] for key in ECHOED if key in client},
        **tuning_object(state),
        **runtime,
    }
    shape.update({key: value for key, value in client.items() if key not in shape and key not in NAMED_APART})
    return shape


def playback_object(response: Response | None) -> dict[str, int]:
    """The playback ledger of an answer, in ms; ``sent_ms`` is what the log knows of it."""
    if response is None:
        return {"generated_ms": 0, "sent_ms": 0, "played_ms": 0, "committed_ms": 0}
    return {
        "generated_ms": response.produced_ms,
        "sent_ms": response.sent_ms,
        "played_ms": response.played_ms,
        "committed_ms": response.committed_ms,
    }


def capabilities_object(runtime: dict[str, Any]) -> dict[str, Any]:
    """What a client may count on."""
    calls = {"supports_tool_calls": runtime["supports_tool_calls"]} if "supports_tool_calls" in runtime else {}
    return {
        "supports_client_commit": True,
        "supports_external_turn_signal": True,
        "supports_barge_in": True,
        "supports_session_resume": True,
        "supports_audio_truncate": True,
        "supports_playback_ack": True,
        "supports_image_input": runtime.get("supports_image_input", False),
        **calls,
        "chunk_period_ms": runtime.get("unit_ms"),
    }
