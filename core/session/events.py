"""The events of a session's log. What is here is the only truth about a session.

Each event is frozen, has a stable ``type`` tag and a schema version, and is never renamed or subclassed. A ``Record`` is
an event at its place: ``position`` is dense from 1, ``epoch`` is the answer lane's ordinal after the event, ``at_ns`` is
the wall clock of the server that wrote it and never runs backwards within a session.

Audio and images are named by ``digest``; the bytes lie beside the rows and are never read by a fold. Times called
``*_ms`` of input count the audio that the client has sent in this session; times of output count from the response's
first sample.
"""

from __future__ import annotations

import attrs

from core.session.config import USUAL_INPUTS, SessionConfig, Tool


@attrs.frozen
class SessionOpened:
    """The session exists, with its effective configuration and the projection that numbers its stream."""

    session_id: str
    dialect: str
    projection_version: int
    config: SessionConfig


@attrs.frozen
class ConfigChanged:
    """A whole new effective configuration."""

    config: SessionConfig
    event_id: str | None = None


@attrs.frozen
class SessionClosed:
    """Nothing follows this event but ``erased``."""

    reason: str


@attrs.frozen
class OwnerChanged:
    """A server took the session's term; committed together with the compare-and-set."""

    term: int
    server: str


@attrs.frozen
class Attached:
    """A client holds the stream. ``resumed_from`` is the last number it named (None: a fresh client, at the head)."""

    generation: int
    token_hash: str
    resumed_from: int | None = None
    sent: tuple[tuple[str, int], ...] = ()
    """(response id, ms): what of recent answers the resumed number covers. This is what was sent, whatever the log or a
    crashed server's cursor said before."""


@attrs.frozen
class TokenConfirmed:
    """The first frame came in on the new attachment: only its token is valid from here on."""

    generation: int


@attrs.frozen
class Detached:
    """The client's socket is gone. ``cursor`` is the last number that was handed to it."""

    generation: int
    cursor: int
    reason: str
    response_id: str | None = None
    sent_ms: int = 0


@attrs.frozen
class Append:
    """Input that a model is fed as it comes: a chunk of audio, an image, a text, a reference voice (``kind``). What is not
    audio takes no time on the input clock and stands at ``start_ms``."""

    kind: str
    digest: str
    size_bytes: int
    start_ms: int
    audio_ms: int
    samples: int = 0
    encoding: str = "pcm16"
    rate: int = 24_000
    event_id: str | None = None
    is_speech: bool | None = None
    text: str = ""
    """A text's own words: a fold needs them, so they are no body."""
    media_type: str = ""
    """What the body of an image or a reference voice is: ``image/png``."""
    item_id: str = ""
    """The client's item that an image is in; empty: the turn that is being said."""


@attrs.frozen
class InputCleared:
    """Input that was not committed was thrown away."""

    event_id: str | None = None


@attrs.frozen
class SpeechStarted:
    """The detector heard speech. ``overlap``: the assistant was speaking, so the turn is not taken yet."""

    segment: int
    start_ms: int
    item_id: str
    overlap: bool = False


@attrs.frozen
class SpeechStopped:
    """The detector heard the end of it. ``text`` is the recogniser's reading of the segment, None if it has none."""

    segment: int
    end_ms: int
    item_id: str
    text: str | None = None
    timings: tuple[tuple[str, int], ...] = ()
    """Stage times in ns on the log's clock, by name (``last_speech``, ``transcript`` ...), for latency breakdowns."""


@attrs.frozen
class InputTranscript:
    """What the recogniser made of a committed item."""

    item_id: str
    text: str


@attrs.frozen
class OverlapDecided:
    """Speech over an answer was judged: ``drop``, ``listen`` or ``barge_in``, with the reason."""

    action: str
    reason: str
    segment: int = 0
    speech_ms: int = 0
    item_id: str = ""


@attrs.frozen
class Commit:
    """The user's turn is closed, by ``client`` or ``detector``. ``speech`` False: nothing was said in it."""

    item_id: str
    by: str
    start_ms: int
    end_ms: int
    speech: bool
    create_response: bool
    segment: int | None = None
    """The detector's segment that the turn is, None when the client drew its bounds."""
    event_id: str | None = None


@attrs.frozen
class LaneOpened:
    """A runtime lane for the current epoch, from the heard history: (item id, characters of it) in order.

    ``tokens`` is its estimated length: the prefix and the units. A part without an id is text kept of dropped turns.
    """

    parts: tuple[tuple[str, int], ...] = ()
    reason: str = "opened"
    tokens: int = 0


@attrs.frozen
class LaneTruncated:
    """The lane was cut back to what was heard of ``item_id`` (characters kept)."""

    item_id: str
    chars: int


@attrs.frozen
class WindowSlid:
    """Whole units left the context window: everything in it up to and including item ``upto``."""

    dropped_units: int
    tokens_before: int
    tokens_after: int
    upto: str = ""


@attrs.frozen
class ResponseStarted:
    """An answer begins in the current epoch. ``trigger``: commit, create, queued, model. ``answers``: the last item of
    the history that it answers (None: all of it)."""

    response_id: str
    item_id: str
    trigger: str
    answers: str | None = None
    metadata: str = "null"
    """The client's metadata as JSON, echoed in response.created and response.done."""
    instructions: str | None = None
    modalities: tuple[str, ...] = ("audio",)
    max_output_tokens: int | None = None
    out_of_band: bool = False
    event_id: str | None = None
    prompt_tokens: int = 0
    """Estimated length of what the lane is told with it: the prefix and the units."""
    tools: tuple[Tool, ...] | None = None
    """For this answer only; None: the session's."""
    tool_choice: str | None = None
    """The same."""


@attrs.frozen
class TextMark:
    """``chars`` characters of the response's text have been spoken when ``audio_end_ms`` of its audio has played."""

    chars: int
    audio_end_ms: int


@attrs.frozen
class Output:
    """One unit from the model: listen, or speak with text and audio. One Output is one audio delta.

    ``marks`` count from the response's beginning, like ``start_ms`` (where this unit's audio begins).
    """

    response_id: str
    unit: int
    kind: str
    text: str = ""
    digest: str = ""
    size_bytes: int = 0
    rate: int = 24_000
    samples: int = 0
    start_ms: int = 0
    audio_ms: int = 0
    marks: tuple[TextMark, ...] = ()
    timings: tuple[tuple[str, int], ...] = ()


@attrs.frozen
class ToolCalled:
    """The model asks for a function call. It counts as made unless a cut finds it undelivered (output_invalidated)."""

    response_id: str
    item_id: str
    call_id: str
    name: str
    arguments: str


@attrs.frozen
class ResponseEnded:
    """The one end of a response: completed, cancelled, failed or incomplete."""

    response_id: str
    status: str
    reason: str = ""
    usage: tuple[int, int] | None = None
    """(input tokens, output tokens) where the model counts them."""


@attrs.frozen
class EpochBump:
    """A new answer lane. ``disposition`` cut: undelivered audio above ``cursor`` is never sent; drain: it still is."""

    epoch: int
    reason: str
    disposition: str
    cursor: int
    response_id: str | None = None
    sent_ms: int = 0
    event_id: str | None = None


@attrs.frozen
class OutputInvalidated:
    """Audio that was produced and will never be sent."""

    response_id: str
    invalidated_ms: int
    calls: tuple[str, ...] = ()
    """Items of function calls that the client never got whole: they were not made, and leave the conversation."""


@attrs.frozen
class PlaybackAck:
    """What of a response was heard. ``source``: client, or assumed (elapsed time, for clients that never acked)."""

    response_id: str
    played_ms: int
    committed_ms: int
    sent_ms: int
    truncate: bool = False
    source: str = "client"
    event_id: str | None = None


@attrs.frozen
class ItemCreated:
    """A conversation item made by the client. ``item`` is its wire form as JSON; ``role`` and ``text`` are read."""

    item_id: str
    role: str
    text: str
    item: str
    previous_item_id: str | None = None
    event_id: str | None = None
    call_id: str = ""
    """Ties a function call and its output together."""
    name: str = ""
    """The function's, of a call."""


@attrs.frozen
class ItemDeleted:
    """A conversation item left the history."""

    item_id: str
    event_id: str | None = None


@attrs.frozen
class ItemRetrieved:
    """The client asked to see an item as it stands."""

    item_id: str
    event_id: str | None = None


@attrs.frozen
class Refused:
    """A command was refused and changed nothing."""

    code: str
    message: str
    param: str | None = None
    event_id: str | None = None
    command: str = ""
    """Which command: ``retrieve_item`` ... (empty in older logs)."""


@attrs.frozen
class Touched:
    """The client showed that it is there, a while after anything else had happened."""


@attrs.frozen
class Paused:
    """The client paused the session; the watchdog ends it when nobody comes back."""

    event_id: str | None = None


@attrs.frozen
class Unpaused:
    """The client goes on."""

    event_id: str | None = None


@attrs.frozen
class DeadlineFired:
    """A deadline that the machine had set has passed."""

    kind: str


@attrs.frozen
class RuntimeChanged:
    """The runtime came (``up``) or was lost; ``lane_tokens_max`` is what a lane may hold (0: unknown)."""

    up: bool
    reason: str = ""
    lane_tokens_max: int = 0
    inputs: tuple[str, ...] = USUAL_INPUTS
    """Which kinds of input its model takes."""
    can_truncate: bool = False
    """Its lanes can be cut back to what was heard; else they are opened anew."""
    reads_again: bool = False
    """Its ear is fed the turns whose transcript the log lacks. No in logs from before it was."""


@attrs.frozen
class Erased:
    """A person's bodies and texts were removed; lengths stay, so the log still folds."""

    items: tuple[str, ...] = ()


Event = (
    SessionOpened
    | ConfigChanged
    | SessionClosed
    | OwnerChanged
    | Attached
    | TokenConfirmed
    | Detached
    | Append
    | InputCleared
    | SpeechStarted
    | SpeechStopped
    | InputTranscript
    | OverlapDecided
    | Commit
    | LaneOpened
    | LaneTruncated
    | WindowSlid
    | ResponseStarted
    | Output
    | ToolCalled
    | ResponseEnded
    | EpochBump
    | OutputInvalidated
    | PlaybackAck
    | ItemCreated
    | ItemDeleted
    | ItemRetrieved
    | Refused
    | Touched
    | Paused
    | Unpaused
    | DeadlineFired
    | RuntimeChanged
    | Erased
)

EVENT_TYPES: dict[str, type] = {
    "session_opened": SessionOpened,
    "config_changed": ConfigChanged,
    "session_closed": SessionClosed,
    "owner_changed": OwnerChanged,
    "attached": Attached,
    "token_confirmed": TokenConfirmed,
    "detached": Detached,
    "append": Append,
    "input_cleared": InputCleared,
    "speech_started": SpeechStarted,
    "speech_stopped": SpeechStopped,
    "input_transcript": InputTranscript,
    "overlap_decided": OverlapDecided,
    "commit": Commit,
    "lane_opened": LaneOpened,
    "lane_truncated": LaneTruncated,
    "window_slid": WindowSlid,
    "response_started": ResponseStarted,
    "output": Output,
    "tool_called": ToolCalled,
    "response_ended": ResponseEnded,
    "epoch_bump": EpochBump,
    "output_invalidated": OutputInvalidated,
    "playback_ack": PlaybackAck,
    "item_created": ItemCreated,
    "item_deleted": ItemDeleted,
    "item_retrieved": ItemRetrieved,
    "refused": Refused,
    "touched": Touched,
    "paused": Paused,
    "unpaused": Unpaused,
    "deadline_fired": DeadlineFired,
    "runtime_changed": RuntimeChanged,
    "erased": Erased,
}
"""Tag in the log -> class. Tags are forever."""

TAGS: dict[type, str] = {cls: tag for tag, cls in EVENT_TYPES.items()}

SCHEMA_VERSIONS: dict[str, int] = dict.fromkeys(EVENT_TYPES, 1)
"""The current schema version of each tag; older rows are read through one-step upcasters in the store."""


@attrs.frozen
class Record:
    """An event at its place in a session's log."""

    position: int
    epoch: int
    at_ns: int
    event: Event
