"""The runtime port: what a session asks of a model, and what comes back.

A runtime hosts ears (one for each session: detector, recogniser, input clock) and lanes (one for each epoch: the model's
working context). Messages to it are the machine's effects; messages from it are below. Every lane message and every
output carries (session, epoch); what comes back from an epoch that is over is dropped by the machine and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import attrs

from core.session.config import USUAL_INPUTS, Tool
from core.session.effects import (
    AbortLane,
    ClearTurn,
    CloseSession,
    CommitTurn,
    ConfigureSession,
    HistoryTurn,
    OpenLane,
    OpenSession,
    PauseLane,
    Respond,
    ResumeLane,
    TruncateLane,
)
from core.session.events import TextMark

__all__ = [
    "TO_RUNTIME",
    "FROM_RUNTIME",
    "AbortLane",
    "Capabilities",
    "ClearTurn",
    "CloseSession",
    "CommitTurn",
    "ConfigureSession",
    "Durations",
    "Feed",
    "FromRuntime",
    "Heard",
    "HistoryTurn",
    "LaneEnded",
    "LaneFailed",
    "ModelStatistics",
    "OpenLane",
    "OpenSession",
    "Part",
    "PauseLane",
    "Produced",
    "Respond",
    "ResumeLane",
    "Runtime",
    "RuntimeBusy",
    "RuntimeLost",
    "RuntimeReady",
    "RuntimeSink",
    "RuntimeStatistics",
    "SpeechBegan",
    "SpeechEnded",
    "SpeechGoesOn",
    "TextMark",
    "ToRuntime",
    "Tool",
    "ToolCalled",
    "TruncateLane",
]


@attrs.frozen
class Feed:
    """The next chunk of the user's audio, in the session's input format (FeedAudio with its bytes)."""

    session: str
    epoch: int
    start_ms: int
    audio_ms: int
    audio: bytes


@attrs.frozen
class Part:
    """Input that is no audio (FeedPart with its bytes), of a kind that the capabilities name. An image comes before the
    history that names it by its digest, and again after OpenSession; one that no history names any more may be forgotten.
    A text's words are in ``text``; they come in the history too, when their turn is closed."""

    session: str
    epoch: int
    kind: str
    digest: str
    media_type: str
    start_ms: int
    item_id: str
    text: str
    data: bytes


ToRuntime = (
    OpenSession
    | ConfigureSession
    | OpenLane
    | Feed
    | Part
    | ClearTurn
    | CommitTurn
    | Respond
    | TruncateLane
    | AbortLane
    | PauseLane
    | ResumeLane
    | CloseSession
)


@attrs.frozen
class Capabilities:
    """What a runtime can do. Rates in Hz; ``unit_ms`` is its clock; ``lane_tokens_max`` 0 means unknown."""

    model: str
    unit_ms: int
    output_rate: int = 24_000
    lane_tokens_max: int = 0
    sessions_max: int = 64
    voices: tuple[str, ...] = ()
    prebuffer_ms: int = 0
    """How much a player should hold before it starts, so that it does not run dry after a short first chunk."""
    inputs: tuple[str, ...] = USUAL_INPUTS
    """Which kinds of input it takes (core.session.config.INPUT_KINDS); others are refused before they come here."""
    can_truncate: bool = False
    """It takes TruncateLane; else a lane that was told too much is opened anew."""
    tool_calls: bool = False
    """It may ask for the functions that a session has."""


@attrs.frozen
class SpeechBegan:
    """Speech began at ``start_ms`` of the input clock (prefix padding not subtracted). Segments count from 1."""

    session: str
    segment: int
    start_ms: int


@attrs.frozen
class SpeechGoesOn:
    """Speech has gone on for ``speech_ms`` (pauses shorter than the hang-over included); sent about every 100 ms."""

    session: str
    segment: int
    speech_ms: int


@attrs.frozen
class SpeechEnded:
    """The silence after a segment lasted ``silence_duration_ms``. ``end_ms``: end of its last loud frame, on the input
    clock. ``text``: its transcript ("" when there was nothing to read; None when the model does not transcribe)."""

    session: str
    segment: int
    start_ms: int
    end_ms: int
    text: str | None
    timings: tuple[tuple[str, int], ...] = ()
    """(stage, time.time_ns()) pairs: ``last_speech`` (arrival of the last loud frame), ``endpoint``, ``transcript``."""


@attrs.frozen
class Heard:
    """The transcript of a committed turn."""

    session: str
    item_id: str
    text: str


@attrs.frozen
class Produced:
    """One unit of an answer: pcm16 mono at ``rate``. ``text`` is what this unit adds to the response's text; ``marks``
    count characters and ms from the response's beginning and end inside or at the end of this unit. The text up to the
    last mark ends at a word. ``kind`` is ``speak`` or ``listen`` (the model chose to stay silent; once it has spoken in this
    answer, that ends it, and what nobody has heard of it is cut)."""

    session: str
    epoch: int
    response_id: str
    unit: int
    kind: str
    text: str
    audio: bytes
    rate: int
    marks: tuple[TextMark, ...]
    timings: tuple[tuple[str, int], ...] = ()
    """(stage, time.time_ns()) pairs of this unit: ``first_token``, ``clause``, ``audio``."""


@attrs.frozen
class ToolCalled:
    """An answer asks for a function call. Comes in its place among the answer's units, before its LaneEnded. ``arguments``:
    JSON text. The result, if the client gives one, is in a later history, behind this call."""

    session: str
    epoch: int
    response_id: str
    call_id: str
    name: str
    arguments: str


@attrs.frozen
class WantsToSpeak:
    """The model would say something that nobody asked for. If it may, a Respond follows; if not, nothing does: it asks
    again when it still wants to."""

    session: str
    epoch: int


@attrs.frozen
class LaneEnded:
    """The answer is complete. ``reason``: completed, or max_output_tokens."""

    session: str
    epoch: int
    response_id: str
    reason: str
    input_tokens: int = 0
    output_tokens: int = 0


@attrs.frozen
class LaneFailed:
    """This answer failed, the session lives. ``code`` is stable (``model_error``, ``lane_full`` ...)."""

    session: str
    epoch: int
    response_id: str
    code: str
    message: str


@attrs.frozen
class RuntimeLost:
    """The session's worker is gone, with its ear and its lanes. Sessions on other workers hear nothing of it."""

    reason: str


@attrs.frozen
class RuntimeReady:
    """The session, which had no worker, has one now: another one, or the same started again. Nothing of it is in there."""

    capabilities: Capabilities


FromRuntime = (
    SpeechBegan
    | SpeechGoesOn
    | SpeechEnded
    | Heard
    | Produced
    | ToolCalled
    | WantsToSpeak
    | LaneEnded
    | LaneFailed
    | RuntimeLost
    | RuntimeReady
)

RuntimeSink = Callable[[FromRuntime], None]
"""Called in the event loop, must not block. RuntimeLost and RuntimeReady name no session: they are about the sink's own,
and come in turns."""

TO_RUNTIME: dict[str, type] = {
    "open_session": OpenSession,
    "configure_session": ConfigureSession,
    "open_lane": OpenLane,
    "feed": Feed,
    "part": Part,
    "clear_turn": ClearTurn,
    "commit_turn": CommitTurn,
    "respond": Respond,
    "truncate_lane": TruncateLane,
    "abort_lane": AbortLane,
    "pause_lane": PauseLane,
    "resume_lane": ResumeLane,
    "close_session": CloseSession,
}
FROM_RUNTIME: dict[str, type] = {
    "speech_began": SpeechBegan,
    "speech_goes_on": SpeechGoesOn,
    "speech_ended": SpeechEnded,
    "heard": Heard,
    "produced": Produced,
    "tool_called": ToolCalled,
    "wants_to_speak": WantsToSpeak,
    "lane_ended": LaneEnded,
    "lane_failed": LaneFailed,
    "runtime_ready": RuntimeReady,
}
"""Tag on the worker's socket -> class (RuntimeLost is made by the host, a dead worker says nothing)."""


class RuntimeBusy(Exception):
    """The queue to the worker is full in items or bytes; nothing was sent."""


@attrs.frozen
class Durations:
    """A histogram: ``counts`` has the durations up to each of ``bounds_ms``, which ascend (and above the one before), then
    those beyond."""

    bounds_ms: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    total_ms: float = 0.0

    def __attrs_post_init__(self) -> None:
        """Raises ValueError: a worker may say anything."""
        ascend = all(low < high for low, high in pairwise(self.bounds_ms))
        if not ascend or len(self.counts) != len(self.bounds_ms) + 1 or min(self.counts) < 0:
            raise ValueError("not a histogram")


@attrs.frozen
class ModelStatistics:
    """What a model says of its work: no word of what was said. The first block is now, the rest counts from the start of its
    worker. What a model does not have stays as it is here."""

    lanes_open: int = 0
    lanes_parked: int = 0
    """Open lanes that hold no memory of the engine's: idle ones made room for others."""
    units_waiting: int = 0
    units_running: int = 0
    kv_used: float = 0.0
    """Share of the KV memory in use, 0..1."""
    tokens_per_s: float = 0.0
    """Decoded, by all lanes together, over the last seconds."""

    units_done: int = 0
    deadline_misses: int = 0
    refused: int = 0
    """Units and lanes that admission did not let in."""
    lanes_failed: int = 0
    """Answers that ended with an error."""
    lanes_slid: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    prefix_tokens_asked: int = 0
    """Prompt tokens of new requests ..."""
    prefix_tokens_cached: int = 0
    """... and how many of them the prefix cache held."""
    unit: Durations = Durations()
    """From a unit's arrival to its end."""
    queue: Durations = Durations()
    """From a unit's arrival to its start."""
    first_token: Durations = Durations()
    """From the asking for an answer to its first token."""


@attrs.frozen
class RuntimeStatistics:
    """What the host knows of its workers, all of them together. ``model``: their models' own figures, about a second
    old; None: none came yet."""

    up: bool
    """At least one is."""
    restarts: int
    sessions: int
    queue_items: int
    queue_bytes: int
    model: ModelStatistics | None = None
    workers: int = 1
    workers_up: int = 0
    sessions_waiting: int = 0
    """Of the sessions: those that no worker has room for now."""


class Runtime(Protocol):
    """Hosts lanes for many sessions, on one worker or several. No call waits.

    A session is on one worker from ``subscribe`` to ``unsubscribe``, or to that worker's end. While it is on none (none is
    up, or none has room) what it sends is dropped, and RuntimeReady tells it when it has one.
    """

    @property
    def capabilities(self) -> Capabilities | None:
        """Of the workers that are up; ``sessions_max`` is their sum. None while none is up."""

    def capabilities_of(self, session: str) -> Capabilities | None:
        """Of the worker that ``session`` is on; None: it is on none."""

    def subscribe(self, session: str, sink: RuntimeSink) -> None:
        """Messages about ``session`` go to ``sink`` until ``unsubscribe``. One sink a session; the newest wins. The session
        gets a worker at once if one has room, which ``capabilities_of`` tells."""

    def unsubscribe(self, session: str, sink: RuntimeSink) -> None:
        """Forget ``sink`` if it is still the session's, and give up its place; CloseSession is sent before."""

    def send(self, message: ToRuntime) -> None:
        """Queue a message for the session's worker, in order. Dropped while it is on none. Raises RuntimeBusy."""

    def statistics(self) -> RuntimeStatistics:
        """Now."""
