"""The log as Moshi's clients see it: a continuous sound, and the words in it.

Theory. Such a client plays one stream for as long as it is connected, and gives up when it hears nothing for long; so sound
flows out as fast as it flows in, silence where nobody speaks. ``_ahead_ms`` is how much of an answer was given beyond what
came in: input that comes meanwhile is answered by the sound that is there already, and silence follows only when that is
used up. Else an answer that is made faster than it is spoken would delay everything behind it, for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from adapters.wire.clocked import MORTAL_MAX, ClockedProjection, Numbered
from core.ports.projection import DELTA, Credentials
from core.session import events as e
from core.session.state import SessionState

HANDSHAKE, AUDIO, TEXT, SILENCE, CUT, ERROR = "handshake", "audio", "text", "silence", "cut", "error"


class MoshiProjection(ClockedProjection):
    """See the module's theory."""

    dialect = "moshi"
    handlers: Mapping[type, str] = {
        e.Append: "_append",
        e.Output: "_output",
        e.EpochBump: "_epoch_bump",
        e.Refused: "_refused",
    }

    def __init__(self) -> None:
        super().__init__()
        self._ahead_ms = 0
        self._mortal: deque[tuple[int, int]] = deque(maxlen=MORTAL_MAX)
        """(number, ms) of sound that a cut may still kill."""

    def greeting(self, state: SessionState, credentials: Credentials | None) -> list[Mapping[str, Any]]:
        """The handshake: the model listens."""
        return [{"type": HANDSHAKE}]

    def _append(self, out: Numbered, event: e.Append, state: SessionState) -> None:
        """What takes no time (an image) asks for no sound."""
        covered = min(self._ahead_ms, event.audio_ms)
        self._ahead_ms -= covered
        if event.audio_ms > covered:
            out.add({"type": SILENCE, "ms": event.audio_ms - covered})

    def _output(self, out: Numbered, event: e.Output, state: SessionState) -> None:
        if event.kind != "speak":
            return
        if event.samples:
            number = out.add({"type": AUDIO}, DELTA, event.response_id, None, (event,), "sound")
            self._mortal.append((number, event.audio_ms))
            self._ahead_ms += event.audio_ms
        if event.text:
            out.add({"type": TEXT, "text": event.text}, DELTA, event.response_id)

    def _epoch_bump(self, out: Numbered, event: e.EpochBump, state: SessionState) -> None:
        if event.disposition != "cut":
            return
        dead_ms = sum(ms for number, ms in self._mortal if number > event.cursor)
        self._ahead_ms = max(0, self._ahead_ms - dead_ms)
        self._mortal.clear()
        out.add({"type": CUT})

    def _refused(self, out: Numbered, event: e.Refused, state: SessionState) -> None:
        out.add({"type": ERROR, "text": event.message})
