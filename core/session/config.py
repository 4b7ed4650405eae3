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
WINDOW_MODES = ("off", "basic", "context")

TOOL_CHOICES = ("auto", "none", "required")
NAMED_TOOL = "function:"
"""Begins the tool choice that names one function."""

AUDIO, TEXT, IMAGE, TOOL_RESULT, REFERENCE_AUDIO = "audio", "text", "image", "tool_result", "reference_audio"
INPUT_KINDS = (AUDIO, TEXT, IMAGE, TOOL_RESULT, REFERENCE_AUDIO)
"""What a model may be able to take in. ``reference_audio``: a voice that it is to speak with."""
USUAL_INPUTS = (AUDIO, TEXT, TOOL_RESULT)
"""What a model takes that does not say, and what one took when logs did not say yet."""


@attrs.frozen
class AudioFormat:
    """An audio encoding and its sample rate in Hz; always one channel, little-endian."""

    encoding: str = "pcm16"
    """One of INPUT_ENCODINGS or OUTPUT_ENCODINGS."""
    rate: int = 24_000
    """Samples a second."""


@attrs.frozen
class TurnDetection:
    """Who closes the user's turn, and what speech over an answer does (OpenAI's ``turn_detection``)."""

    type: str = "server_vad"
    """``server_vad`` or ``semantic_vad``: a silence ends the turn."""
    threshold: float = 0.5
    """How sure the detector must be that it hears speech, 0 to 1."""
    prefix_padding_ms: int = 300
    """How much sound before the speech belongs to the turn."""
    silence_duration_ms: int = 320
    """How long a silence ends the turn. Shorter answers sooner and cuts off slow speakers sooner."""
    create_response: bool = True
    """Whether a finished turn is answered without being asked to."""
    interrupt_response: bool = True
    """Whether speech may cut an answer off."""


@attrs.frozen
class Tool:
    """A function that the model may ask the client to call."""

    name: str
    """What the client calls it."""
    description: str = ""
    """For the model: what it does, and when to call it."""
    parameters: str = "{}"
    """JSON schema of its arguments, as text."""


@attrs.frozen
class SessionConfig:
    """Everything that steers a session. Times carry their unit; ``None`` switches a limit off."""

    model: str = "cascade"
    """Name of the model plugin that answers."""
    instructions: str = ""
    """What the model is told about itself (the system prompt)."""
    voice: str = ""
    """One of the model's voices; empty: its first."""
    output_modalities: tuple[str, ...] = ("audio",)
    """``("audio",)``, ``("text",)``, or ``("text", "audio")``, which is an answer in audio with its transcript."""
    input_format: AudioFormat = AudioFormat()
    """What the client sends."""
    output_format: AudioFormat = AudioFormat()
    """What the client wants to get."""
    turn_detection: TurnDetection | None = TurnDetection()
    """None: the client says itself when a turn is over."""
    overlap_policy: str = "barge_in_on_speech"
    """What speech over an answer may do: ``barge_in_on_speech``, or ``listen_only`` (the answer always goes on)."""
    overlap_short_ack_ms: int = 700
    """Without a transcript, speech over an answer up to this length is a remark ("mm-hmm") and lets it go on."""
    overlap_barge_in_ms: int = 1_200
    """Speech over an answer that lasts this long cuts it off before it has ended."""
    overlap_silence_rms: float = 0.003
    """Loudness (0 to 1) below which speech over an answer may be taken for noise."""
    unacked: str = "assume_elapsed"
    """What a client that never reports playback is taken to have heard: ``assume_elapsed`` or ``heard_nothing``."""
    context_on_barge_in: str = "heard"
    """What the next answer starts from: ``heard`` or ``empty``."""
    window_mode: str = "basic"
    """What becomes of old turns once the conversation is longer than the context window: ``basic`` (they are dropped),
    ``context`` (dropped, and a little of their text is kept in the prompt), or ``off`` (a conversation that is longer
    than the model can hold ends the session)."""
    window_high_tokens: int = 8_000
    """A conversation estimated to be longer than this loses its oldest turns; at most three quarters of what a lane of
    the model holds."""
    window_low_tokens: int = 6_000
    """... until it is at most this long."""
    window_previous_tokens: int = 500
    """How much text of dropped turns mode ``context`` keeps."""
    max_output_tokens: int | None = None
    """Longest answer."""
    temperature: float | None = None
    """Kept for logs that have one: no model reads it, and clients that ask for one are refused."""
    max_client_lead_ms: int | None = None
    """How far delivery may run ahead of the real time of playback."""
    max_lane_lead_ms: int = 10_000
    """How far the model may run ahead of delivery before it is paused."""
    idle_timeout_ms: int = 300_000
    """A session in which nothing happens for this long is closed."""
    pause_watchdog_ms: int = 60_000
    """A session that stays paused for this long is closed."""
    disconnect_grace_ms: int = 30_000
    """How long a session without a client waits for it to come back."""
    max_session_ms: int | None = None
    """Longest session."""
    max_pending_commits: int = 4
    """Turns that may wait for an answer."""
    max_pending_input_bytes: int = 16 * 1024 * 1024
    """Audio that may lie uncommitted."""
    replay_window_ms: int = 60_000
    """How far back a resumed client can get audio again."""
    replay_window_bytes: int = 8 * 1024 * 1024
    """The same, in bytes of audio."""
    echo: str = "{}"
    """JSON object of what the dialect must echo back as the client wrote it, and the machine does not read (tracing ...)."""
    tools: tuple[Tool, ...] = ()
    """Functions that the model may ask for."""
    tool_choice: str = "auto"
    """``auto``, ``none``, ``required``, or ``function:NAME`` for one that it has to ask for."""
