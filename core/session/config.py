"""The effective configuration of one session, as the log records it.

A configuration is one frozen value: an update replaces the whole of it or nothing. Wire dialects translate their own
``session`` objects into these fields; what a dialect must echo but the machine does not read travels in ``echo``.
"""

from __future__ import annotations

import attrs

INPUT_ENCODINGS = ("pcm16", "pcm_f32le", "g711_ulaw", "g711_alaw")
OUTPUT_ENCODINGS = ("pcm16", "pcm_f32le", "g711_ulaw", "g711_alaw")
OVERLAP_POLICIES = ("listen_only", "barge_in_on_speech")
UNACKED_POLICIES = ("assume_elapsed", "heard_nothing")


@attrs.frozen
class AudioFormat:
    """An audio encoding and its sample rate in Hz; always one channel, little-endian."""

    encoding: str = "pcm16"
    rate: int = 24_000


@attrs.frozen
class TurnDetection:
    """Who closes the user's turn, and what speech over an answer does (OpenAI's ``turn_detection``)."""

    type: str = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 320
    create_response: bool = True
    interrupt_response: bool = True


@attrs.frozen
class SessionConfig:
    """Everything that steers a session. Times carry their unit; ``None`` switches a limit off."""

    model: str = "cascade"
    instructions: str = ""
    voice: str = ""
    output_modalities: tuple[str, ...] = ("audio",)
    input_format: AudioFormat = AudioFormat()
    output_format: AudioFormat = AudioFormat()
    turn_detection: TurnDetection | None = TurnDetection()
    overlap_policy: str = "barge_in_on_speech"
    overlap_short_ack_ms: int = 700
    overlap_barge_in_ms: int = 1_200
    overlap_silence_rms: float = 0.003
    unacked: str = "assume_elapsed"
    context_on_barge_in: str = "heard"
    max_output_tokens: int | None = None
    temperature: float | None = None
    max_client_lead_ms: int | None = None
    max_lane_lead_ms: int = 10_000
    idle_timeout_ms: int = 300_000
    pause_watchdog_ms: int = 60_000
    disconnect_grace_ms: int = 30_000
    max_session_ms: int | None = None
    max_pending_commits: int = 4
    max_pending_input_bytes: int = 16 * 1024 * 1024
    replay_window_ms: int = 60_000
    replay_window_bytes: int = 8 * 1024 * 1024
    echo: str = "{}"
    """JSON object of what the dialect must echo back and the machine does not read (tools, metadata, tracing ...)."""
