"""The state of one session: a fold of its log, and nothing that is not in the log.

``apply`` changes it in place (a fold of an hour is 36,000 events; copying a frozen state for each costs ten times as
much), so a state belongs to one fold: an actor that cannot trust its memory any more throws the state away and folds
anew. Everything in here is bounded: by the limits of the configuration, or by the constants below.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import attrs

from core.session import events as e
from core.session.config import USUAL_INPUTS, AudioFormat, SessionConfig
from core.session.effects import HistoryTurn

EVENT_IDS_MAX = 1_024
"""How many of the client's last event ids are remembered, so that input that is sent again is not doubled."""

RESPONSES_MAX = 64
"""How many ended responses keep their ledger; an ack for an older one finds only the item."""

PREROLL_MS = 2_000
"""With a detector and nobody speaking, this much of the input is kept (for a new worker's ear), the rest forgotten."""

PENDING_CHUNKS_MAX = 65_536
"""Chunks of audio that may lie uncommitted, however small they are."""

UNREAD_TURNS_MAX = 8
UNREAD_BYTES_MAX = 4 * 1024 * 1024
"""Committed turns of which the log has no transcript, and their audio, that a new worker is fed again; the oldest leave
first, the newest stays however long it is."""

PREVIOUS_ITEMS_MAX = 256
"""Items that have left the window and of which some text may still be told."""

ITEMS_MAX = 4_096
ITEMS_BYTES_MAX = 32 * 1024 * 1024
"""Conversation items kept, and their texts; the oldest leave first, the newest stays however long it is."""

ANSWER_CHARS_MAX = 1024 * 1024
ANSWER_MARKS_MAX = 65_536
"""Text and text marks of one answer, of many hours; one that is longer fails."""

IMAGES_PENDING_MAX = 256
"""Images that may lie uncommitted, however small they are."""

IMAGES_A_TURN_MAX = 8
"""Images that one turn of the history shows; of more, the newest."""

IMAGES_MAX = 32
IMAGES_BYTES_MAX = 4 * 1024 * 1024
"""Images of the whole history that a model is shown; the oldest leave first."""

REFERENCE_BYTES_MAX = 8 * 1024 * 1024
"""A reference voice: two minutes of float32 at 16 kHz."""

CALLS_MAX = 64
CALL_BYTES_MAX = 64 * 1024
"""Function calls of one answer, and the name and arguments of one."""


class Phase(Enum):
    """What a session can be in. ``NEW`` only before its first event."""

    NEW = "new"
    OPEN = "open"
    PAUSED = "paused"
    CLOSED = "closed"


@attrs.define
class Response:
    """One answer and its ledger. Invariant: committed_ms <= played_ms <= sent_ms <= produced_ms.

    ``sent_ms`` is what the log knows to have been handed to the socket; the live cursor may be ahead of it.
    """

    response_id: str
    item_id: str
    epoch: int
    trigger: str
    answers: str | None
    metadata: str
    modalities: tuple[str, ...]
    out_of_band: bool
    started_ns: int
    prompt_tokens: int = 0
    status: str = "in_progress"
    reason: str = ""
    usage: tuple[int, int] | None = None
    text: str = ""
    marks: list[tuple[int, int]] = attrs.field(factory=list)
    units: int = 0
    produced_samples: int = 0
    produced_ms: int = 0
    sent_ms: int = 0
    played_ms: int = 0
    committed_ms: int = 0
    invalidated_ms: int = 0
    limit_ms: int | None = None
    """Set by a truncate: nothing beyond it is ever heard."""
    acked: bool = False
    last_ack_ns: int = 0
    cut: bool = False
    """Undelivered audio of it is dead."""
    calls: dict[str, int] = attrs.field(factory=dict)
    """Its function calls: item id -> position in the log."""

    @property
    def active(self) -> bool:
        """Still being made."""
        return self.status == "in_progress"


@attrs.frozen
class Image:
    """An image (or a reference voice), by digest, where it stands on the input clock."""

    digest: str
    size_bytes: int
    media_type: str
    start_ms: int


@attrs.frozen
class Told:
    """How an item is told to the model: its turns in order, their estimated length, and the one of them that was spoken or
    shown (what was typed beside it is the other)."""

    turns: tuple[HistoryTurn, ...]
    parts: tuple[tuple[str, int], ...]
    """(item id, characters) of each turn."""
    tokens: int
    said: HistoryTurn | None


@attrs.define
class Item:
    """A conversation item. ``text`` None: a user's turn whose transcript is not there (yet)."""

    item_id: str
    role: str
    kind: str
    text: str | None
    response_id: str | None = None
    source: str | None = None
    """The client's own JSON, for items that it created."""
    spoken: bool = False
    transcribed: bool = False
    """A detector or recogniser gave the text."""
    audio_ms: int = 0
    """How long the user spoke, pauses included."""
    name: str = ""
    """The function's, of a call."""
    call_id: str = ""
    """Of a function call and of its output."""
    typed: str = ""
    """What came as text while the turn was said; told before what was spoken."""
    images: tuple[Image, ...] = ()
    size_bytes: int = 0
    """What its texts cost in memory, about."""
    told: Told | None = attrs.field(default=None, eq=False, repr=False)
    """See telling.py. None: not worked out since something of the item changed."""


@attrs.define
class Chunk:
    """Audio that was appended, and that a new worker needs: it is not committed, or its transcript is not there."""

    digest: str
    size_bytes: int
    start_ms: int
    audio_ms: int
    format: AudioFormat

    @property
    def end_ms(self) -> int:
        """Where it ends on the input clock."""
        return self.start_ms + self.audio_ms


@attrs.frozen
class UnreadTurn:
    """A committed turn whose transcript is not in the log: its place on the input clock, and its audio."""

    start_ms: int
    end_ms: int
    chunks: tuple[Chunk, ...]
    size_bytes: int = attrs.field(init=False)
    """Of its audio."""

    @size_bytes.default
    def _sum(self) -> int:
        return sum([chunk.size_bytes for chunk in self.chunks])


@attrs.define
class Speech:
    """The detector's open segment. ``judged``: an overlap that was decided (or speech that is none)."""

    segment: int
    start_ms: int
    item_id: str
    overlap: bool
    judged: bool


@attrs.define
class Input:
    """The user's side: the input clock and what is pending on it."""

    base_ms: int = 0
    base_samples: int = 0
    samples: int = 0
    now_ms: int = 0
    """How much audio the client has sent in this session: the input clock."""
    taken_ms: int = 0
    """Where the uncommitted part begins."""
    pending: deque[Chunk] = attrs.field(factory=deque)
    pending_bytes: int = 0
    unread: dict[str, UnreadTurn] = attrs.field(factory=dict)
    """By item id, in order. A chunk in which a turn ends is in that turn, and in what follows it too."""
    closed_ms: int = 0
    """Where the newest turn ended."""
    heard_speech: bool = False
    """Something of the pending input may be speech: not all of it came with the client's hint that it is none."""
    speech: Speech | None = None
    images: deque[Image] = attrs.field(factory=deque)
    """Shown and not committed; ``pending_bytes`` counts them and ``typed`` too."""
    typed: str = ""
    typed_bytes: int = 0


@attrs.define
class ToldPrefix:
    """How the window's first items are told, all together; see telling.py. Invariant: ``item_ids`` are the first of the
    window's, and everything else is what telling them anew would give."""

    item_ids: set[str] = attrs.field(factory=set)
    turns: list[HistoryTurn] = attrs.field(factory=list)
    parts: list[tuple[str, int]] = attrs.field(factory=list)
    """(item id, characters) of each turn."""
    tokens: int = 0


@attrs.define
class Window:
    """Which of the conversation's items the model is still told. Invariant: a part of the conversation, in its order."""

    items: dict[str, None] = attrs.field(factory=dict)
    previous: deque[str] = attrs.field(factory=lambda: deque(maxlen=PREVIOUS_ITEMS_MAX))
    """The newest items that left."""
    excess_tokens: int = 0
    """What the runtime's last prompt had beyond our estimate of it."""
    told: ToldPrefix = attrs.field(factory=ToldPrefix, eq=False, repr=False)


@attrs.define
class Attachment:
    """Who holds the stream. The previous token stays valid until the new attachment's first frame has arrived."""

    generation: int = 0
    attached: bool = False
    token_hash: str = ""
    previous_token_hash: str = ""
    confirmed: bool = True
    detached_ns: int = 0

    def attach(self, event: e.Attached) -> None:
        """Another client, or the same one again, has the stream."""
        self.generation = event.generation
        self.attached = True
        if self.confirmed:  # else it came back with the older token: its answer was lost, maybe more than once
            self.previous_token_hash = self.token_hash
        self.token_hash = event.token_hash
        self.confirmed = event.resumed_from is None

    def confirm(self, event: e.TokenConfirmed) -> None:
        """Only the newest token is valid from here on."""
        if event.generation == self.generation:
            self.confirmed = True
            self.previous_token_hash = ""


@attrs.define
class SessionState:
    """Everything the machine knows of a session."""

    session_id: str = ""
    dialect: str = ""
    projection_version: int = 0
    phase: Phase = Phase.NEW
    config: SessionConfig = attrs.field(factory=SessionConfig)
    position: int = 0
    epoch: int = 0
    term: int = 0
    server: str = ""
    opened_ns: int = 0
    at_ns: int = 0
    activity_ns: int = 0
    paused_ns: int = 0
    runtime_up: bool = False
    lane_tokens_max: int = 0
    inputs: tuple[str, ...] = USUAL_INPUTS
    """Which kinds of input the model takes, as far as is known."""
    can_truncate: bool = False
    spoken: bool = False
    """The assistant has produced audio: the voice is settled."""
    input: Input = attrs.field(factory=Input)
    attachment: Attachment = attrs.field(factory=Attachment)
    active: Response | None = None
    responses: dict[str, Response] = attrs.field(factory=dict)
    """The last responses by id, oldest first; the active one among them."""
    items: dict[str, Item] = attrs.field(factory=dict)
    """The conversation, in order."""
    items_bytes: int = 0
    """Invariant: the sum of the items' ``size_bytes``."""
    window: Window = attrs.field(factory=Window)
    shown: dict[str, None] = attrs.field(factory=dict)
    """Items with images that the model is still shown, oldest first."""
    reference: Image | None = None
    """The voice that the client wants to hear."""
    told_too_much: dict[str, None] = attrs.field(factory=dict)
    """Answers' items of which the present lane may know more than turned out to be heard."""
    lane_epoch: int = 0
    """The epoch of the lane that is open in the runtime; 0: none."""
    queued: deque[str] = attrs.field(factory=deque)
    """Committed turns that wait for the active answer to end, by item id."""
    items_made: int = 0
    responses_made: int = 0
    event_ids: dict[str, None] = attrs.field(factory=dict)
    last_event_id: str | None = None
    close_reason: str = ""

    @property
    def last_response(self) -> Response | None:
        """The newest response, active or not."""
        return next(reversed(self.responses.values()), None)

    def response_of_item(self, item_id: str) -> Response | None:
        """The response whose item this is, while its ledger is kept."""
        item = self.items.get(item_id)
        if item is None or item.response_id is None:
            return None
        return self.responses.get(item.response_id)


def short_id(session_id: str) -> str:
    """What of a session's id goes into the ids made within it."""
    return session_id.rpartition("-")[2][:12]


def is_reserved_item_id(state: SessionState, item_id: str) -> bool:
    """Whether the machine itself may still give this id to an item."""
    prefix, _, number = item_id.rpartition("_")
    if prefix != f"item_{short_id(state.session_id)}" or not number.isdecimal():
        return False
    speech = state.input.speech
    return int(number) > state.items_made or (speech is not None and speech.item_id == item_id)


def next_item_id(state: SessionState) -> str:
    """The id of the next item: derived from the session, so that a replay makes the same."""
    return f"item_{short_id(state.session_id)}_{state.items_made + 1}"


def next_response_id(state: SessionState) -> str:
    """The id of the next response."""
    return f"resp_{short_id(state.session_id)}_{state.responses_made + 1}"
