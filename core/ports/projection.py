"""The projection port: log -> what the client sees. A projection is a fold, so any server that can read the log can go
on with the stream; it knows no socket, no clock and no audio bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from core.session.events import Record
from core.session.state import SessionState

LIVE = "live"
DELTA = "delta"
TERMINAL = "terminal"
"""What a cut does to a frame of an answer that it ends. Above the cut's cursor ``live`` frames are sent all the same,
``delta`` and ``terminal`` frames never (the end that follows names the range). At or below it they were handed over, and
may be lost on their way: a resume then sends ``live`` and ``terminal`` frames again (an end, a function call: what
stands), and no ``delta`` (what was to be heard or read)."""


@attrs.frozen
class Frame:
    """One wire event at its number. ``payload`` is the JSON object without its audio; audio is named by ``digest`` (that of
    several units, one after the other, by their digests joined by ``+``) and put in, converted to the negotiated format,
    at ``payload[audio_field]`` when the frame is sent."""

    number: int
    position: int
    epoch: int
    kind: str
    payload: Mapping[str, Any]
    response_id: str | None = None
    digest: str = ""
    audio_field: str = ""
    rate: int = 24_000
    start_ms: int = 0
    audio_ms: int = 0
    size_bytes: int = 0


class Projection(Protocol):
    """Folds records into frames, with numbers that strictly increase."""

    dialect: str
    version: int

    def fold(self, record: Record, state: SessionState) -> list[Frame]:
        """The frames that ``record`` adds; ``state`` is the machine's state after it. Total: never raises on a record
        that the machine wrote."""

    def pass_over(self, record: Record, state: SessionState) -> None:
        """As ``fold``, for a record so old that nobody can ask for its frames: what comes after it is numbered and told as
        if it had been folded, and its frames need not be made."""

    @property
    def number(self) -> int:
        """The last number given out."""

    def greeting(self, state: SessionState, credentials: Credentials | None) -> list[Mapping[str, Any]]:
        """Unnumbered events that open a fresh attachment (session.created)."""

    def resumed(self, state: SessionState, credentials: Credentials, resumption: Resumption) -> Mapping[str, Any]:
        """The unnumbered event that opens a resumed attachment."""


@attrs.frozen
class Credentials:
    """What a client needs to resume: handed out once, at each attachment."""

    session_id: str
    generation: int
    resume_token: str = attrs.field(repr=False)


@attrs.frozen
class Resumption:
    """What a resumed client must know: ranges of numbers it will not get, and how far its own input is durable."""

    skipped: tuple[tuple[int, int], ...]
    input_ms: int
    last_event_id: str | None
