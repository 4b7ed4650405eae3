"""What the machine asks the world to do. Effects are data: live, the actor carries them out; in a replay they are
computed and compared.

Those that name a lane are the runtime port's messages as they are; they carry (session, epoch) and are idempotent.
``FeedAudio`` names its bytes by digest: the actor puts the bytes in when it hands the message on.
"""

from __future__ import annotations

import attrs

from core.session.config import AudioFormat, Tool, TurnDetection


@attrs.frozen
class HistoryTurn:
    """One turn of the conversation as the model may know it: of an answer, only what was heard.

    ``text`` None: a user's turn that the runtime itself transcribes (it knows ``item_id`` from CommitTurn). A turn with a
    ``name`` is a function call of the assistant's, and ``text`` its arguments (JSON); the role ``tool`` is a call's result.
    """

    role: str
    text: str | None
    item_id: str
    images: tuple[str, ...] = ()
    """Digests of what the turn shows; each was fed (FeedPart) before it is named here."""
    name: str = ""
    call_id: str = ""
    """Ties a call and its result together."""


@attrs.frozen
class OpenSession:
    """Make the session's ear (detector, recogniser, input clock). Opening twice starts afresh."""

    session: str
    input_format: AudioFormat
    turn_detection: TurnDetection | None
    input_ms: int = 0
    """Where the input clock stands: the ear's times go on from here."""
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"


@attrs.frozen
class ConfigureSession:
    """New input format or turn detection for a session's ear, new tools for its model."""

    session: str
    input_format: AudioFormat
    turn_detection: TurnDetection | None
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"


@attrs.frozen
class OpenLane:
    """A lane for this epoch, prefilled with the heard history. Lanes of lower epochs are dead from here on."""

    session: str
    epoch: int
    instructions: str
    voice: str
    history: tuple[HistoryTurn, ...]


@attrs.frozen
class FeedAudio:
    """The next chunk of the user's audio; ``start_ms`` on the input clock."""

    session: str
    epoch: int
    digest: str
    start_ms: int
    audio_ms: int


@attrs.frozen
class FeedPart:
    """Input that is no audio: an image or a reference voice by digest, a text as it is. ``item_id``: of the client's item
    that it is in; empty: of the turn that is being said. A part may come again after OpenSession."""

    session: str
    epoch: int
    kind: str
    digest: str
    media_type: str
    start_ms: int
    item_id: str = ""
    text: str = ""


@attrs.frozen
class ClearTurn:
    """Forget the audio that was fed and not committed."""

    session: str


@attrs.frozen
class CommitTurn:
    """The user's turn is [start_ms, end_ms) of the input and is called ``item_id``. ``segment`` set: the detector's
    segment, whose transcript is known already; None: transcribe now and answer with a Transcript."""

    session: str
    item_id: str
    start_ms: int
    end_ms: int
    segment: int | None = None


@attrs.frozen
class Respond:
    """Answer. ``history`` is the whole heard conversation up to and including the turn to answer."""

    session: str
    epoch: int
    response_id: str
    instructions: str
    history: tuple[HistoryTurn, ...]
    modalities: tuple[str, ...]
    max_output_tokens: int | None
    tools: tuple[Tool, ...] | None = None
    """For this answer only; None: the session's."""
    tool_choice: str | None = None
    """The same."""


@attrs.frozen
class TruncateLane:
    """Less was heard of ``item_id`` than the lane was told: it knows ``chars`` characters of it, and nothing behind them."""

    session: str
    epoch: int
    item_id: str
    chars: int


@attrs.frozen
class AbortLane:
    """Stop everything of this epoch and below, now."""

    session: str
    epoch: int


@attrs.frozen
class PauseLane:
    """The lane is far enough ahead of its listener: produce nothing more for now."""

    session: str
    epoch: int


@attrs.frozen
class ResumeLane:
    """Go on producing."""

    session: str
    epoch: int


@attrs.frozen
class CloseSession:
    """Free everything of a session."""

    session: str


RuntimeEffect = (
    OpenSession
    | ConfigureSession
    | OpenLane
    | FeedAudio
    | FeedPart
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
class FenceOutput:
    """The sender stops, drops undelivered audio above ``cursor`` of epochs below ``epoch``, and waits for durability."""

    epoch: int
    cursor: int


@attrs.frozen
class CloseSocket:
    """Close the client's socket after what is durable was sent."""

    code: int
    reason: str


@attrs.frozen
class EndSession:
    """The actor's work is done."""

    reason: str


Effect = RuntimeEffect | FenceOutput | CloseSocket | EndSession
