"""Commands: what may be asked of a session. A command is decided into events, or refused.

Three kinds of sender: the client (through a wire dialect), the runtime (what a model or a detector found), and the
actor (sockets, deadlines, owners). Bodies are named by digest; the actor has the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import attrs

from core.session.config import USUAL_INPUTS, SessionConfig, Tool
from core.session.events import TextMark


@attrs.frozen
class Sent:
    """How much of one response was handed to the socket, and when it will have been played: by a client that plays what it
    gets at once, and one answer after the other."""

    sent_ms: int
    played_out_ns: int


@attrs.frozen
class Cursor:
    """Where the stream stands: the last number handed to the socket, and what of recent responses was sent. ``waiting``:
    the first log position of which something was not handed over yet that a cut may still take (0: nothing waits)."""

    number: int = 0
    sent: Mapping[str, Sent] = attrs.field(factory=dict)
    waiting: int = 0


# -- from the client ----------------------------------------------------------------------------------------------


@attrs.frozen
class ImageBody:
    """An image by the digest of its bytes."""

    digest: str
    size_bytes: int
    media_type: str


@attrs.frozen
class AppendAudio:
    """One chunk of audio in the session's input format, checked and whole samples, and what was shown along with it. No
    digest: images alone.

    ``is_speech`` is the client's own word. Without it ``rms`` (loudness, 0 to 1; None: not measured) decides by
    ``overlap_silence_rms`` whether the chunk may be speech.
    """

    digest: str
    size_bytes: int
    samples: int
    event_id: str | None = None
    is_speech: bool | None = None
    rms: float | None = None
    images: tuple[ImageBody, ...] = ()


@attrs.frozen
class AppendPart:
    """Input beside audio and images: ``text`` of the turn that is being said, as it is (the machine measures it), or
    ``reference_audio`` by digest, with its ``size_bytes``."""

    kind: str
    digest: str = ""
    size_bytes: int = 0
    media_type: str = ""
    text: str = ""
    event_id: str | None = None


@attrs.frozen
class ClearInput:
    """Throw uncommitted input away."""

    event_id: str | None = None


@attrs.frozen
class CommitInput:
    """``create_response`` None: the dialect's default, which is not to."""

    create_response: bool | None = None
    event_id: str | None = None


@attrs.frozen
class CreateResponse:
    """``metadata`` is JSON text; unset options come from the session."""

    metadata: str = "null"
    instructions: str | None = None
    modalities: tuple[str, ...] | None = None
    max_output_tokens: int | None = None
    out_of_band: bool = False
    event_id: str | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: str | None = None


@attrs.frozen
class CancelOutput:
    """The one way to cut an answer, whoever asks. ``reason``: client_cancelled, barge_in, output_audio_buffer_clear ...

    ``quiet``: with nothing to cut, nothing happens (otherwise that is refused as response_not_active).
    ``clear_input``: throw pending input away as well (input.cancel). ``unsent_only``: an answer that was handed over
    whole is over for this command, even while it plays (OpenAI's response.cancel). ``always``: with nothing to cut, the
    lane is begun anew all the same (barge_in and input.cancel of the duplex dialect).
    """

    reason: str
    response_id: str | None = None
    quiet: bool = False
    clear_input: bool = False
    unsent_only: bool = False
    event_id: str | None = None
    always: bool = False


@attrs.frozen
class JudgeOverlap:
    """The client's own judgement of what is being said over an answer: ``action`` barge_in, listen or drop, and one of
    ``overlap.CLIENT_REASONS``. Where nothing is said over an answer there is nothing to judge."""

    action: str
    reason: str


@attrs.frozen
class CreateItem:
    """``item`` is the wire form as JSON text; ``role`` is that of a message, or function_call or function_call_output,
    whose ``call_id`` (and a call's ``name``) tie the two together."""

    role: str
    text: str
    item: str
    item_id: str | None = None
    previous_item_id: str | None = None
    event_id: str | None = None
    call_id: str = ""
    name: str = ""
    images: tuple[ImageBody, ...] = ()


@attrs.frozen
class DeleteItem:
    """Take an item out of the conversation."""

    item_id: str
    event_id: str | None = None


@attrs.frozen
class RetrieveItem:
    """Show an item as it stands."""

    item_id: str
    event_id: str | None = None


@attrs.frozen
class AckPlayback:
    """What was heard of a response (named by either id; with neither, the last one). ``truncate``: for good."""

    played_ms: int
    committed_ms: int | None = None
    response_id: str | None = None
    item_id: str | None = None
    truncate: bool = False
    event_id: str | None = None


@attrs.frozen
class UpdateConfig:
    """The whole new configuration: the dialect merged the client's changes into the present one."""

    config: SessionConfig
    event_id: str | None = None


@attrs.frozen
class Pause:
    """Take nothing and say nothing until ``Unpause``; the watchdog ends a session that stays so."""

    event_id: str | None = None


@attrs.frozen
class Unpause:
    """Go on."""

    event_id: str | None = None


@attrs.frozen
class Touch:
    """The client is there, and wants nothing (a heartbeat)."""


@attrs.frozen
class Close:
    """End the session, for good."""

    reason: str = "client_close"
    event_id: str | None = None


# -- from the runtime ---------------------------------------------------------------------------------------------


@attrs.frozen
class SpeechHeard:
    """Speech began at ``start_ms`` of the input clock."""

    segment: int
    start_ms: int


@attrs.frozen
class SpeechContinues:
    """The segment has lasted ``speech_ms`` and goes on."""

    segment: int
    speech_ms: int


@attrs.frozen
class SpeechFinished:
    """The segment is over; ``text`` as in the runtime port."""

    segment: int
    start_ms: int
    end_ms: int
    text: str | None
    timings: tuple[tuple[str, int], ...] = ()


@attrs.frozen
class TurnHeard:
    """What the recogniser made of the committed item."""

    item_id: str
    text: str


@attrs.frozen
class ModelSpeaks:
    """The model would begin an answer that nobody asked for."""

    epoch: int


@attrs.frozen
class ModelOutput:
    """One unit of an answer; ``epoch`` is that of the lane it came from."""

    epoch: int
    response_id: str
    unit: int
    kind: str
    text: str = ""
    digest: str = ""
    size_bytes: int = 0
    rate: int = 24_000
    samples: int = 0
    marks: tuple[TextMark, ...] = ()
    timings: tuple[tuple[str, int], ...] = ()


@attrs.frozen
class ModelCall:
    """The model asks for a function call. ``call_id`` is its own name for it, empty when it has none."""

    epoch: int
    response_id: str
    call_id: str
    name: str
    arguments: str


@attrs.frozen
class ModelDone:
    """The answer's end. ``status``: completed, incomplete or failed."""

    epoch: int
    response_id: str
    status: str = "completed"
    reason: str = ""
    usage: tuple[int, int] | None = None


@attrs.frozen
class LoseRuntime:
    """The worker is gone, with every ear and lane in it."""

    reason: str


@attrs.frozen
class GainRuntime:
    """A worker is up; ``lane_tokens_max``: what a lane of it holds (0: unknown)."""

    lane_tokens_max: int = 0
    inputs: tuple[str, ...] = USUAL_INPUTS
    can_truncate: bool = False


# -- from the actor -----------------------------------------------------------------------------------------------


@attrs.frozen
class Attach:
    """A client takes the stream. ``sent``: (response id, ms) that ``resumed_from`` covers of recent answers."""

    token_hash: str
    resumed_from: int | None = None
    sent: tuple[tuple[str, int], ...] = ()


@attrs.frozen
class ConfirmToken:
    """The client has shown that the newest resume token arrived."""

    generation: int


@attrs.frozen
class Detach:
    """The socket of that attachment is gone."""

    generation: int
    reason: str


@attrs.frozen
class FireDeadline:
    """The earliest deadline that the machine named has passed."""


@attrs.frozen
class FailOutput:
    """The client does not take what was released for it (output_backpressure)."""

    reason: str = "output_backpressure"


Command = (
    AppendAudio
    | AppendPart
    | ClearInput
    | CommitInput
    | CreateResponse
    | CancelOutput
    | JudgeOverlap
    | CreateItem
    | DeleteItem
    | RetrieveItem
    | AckPlayback
    | UpdateConfig
    | Pause
    | Unpause
    | Touch
    | Close
    | SpeechHeard
    | SpeechContinues
    | SpeechFinished
    | TurnHeard
    | ModelSpeaks
    | ModelOutput
    | ModelCall
    | ModelDone
    | LoseRuntime
    | GainRuntime
    | Attach
    | ConfirmToken
    | Detach
    | FireDeadline
    | FailOutput
)

CLIENT_COMMANDS = (
    AppendAudio,
    AppendPart,
    ClearInput,
    CommitInput,
    CreateResponse,
    CancelOutput,
    JudgeOverlap,
    CreateItem,
    DeleteItem,
    RetrieveItem,
    AckPlayback,
    UpdateConfig,
    Pause,
    Unpause,
    Close,
)

NAMES: dict[type, str] = {
    kind: "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).lstrip("_")
    for kind in get_args(Command)
}
"""Command -> its name in the log's refusals: ``retrieve_item``."""
