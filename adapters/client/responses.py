"""One answer, as the client sees it: what it decided, what came, what was heard.

The ledger: ``received_ms`` of audio came in, of which ``delivered_ms`` went to a player, of which ``played_ms`` was
heard. Invariant: 0 <= acked <= played <= received. ``played_ms`` only grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapters.wire.schema import audio, names

MARKS_MAX = 4_096

SPEAK = "speak"
LISTEN = "listen"
NONE = "none"


@dataclass(slots=True)
class ResponseState:
    """Everything that the client knows of one response. Times ``*_ns`` are the client's own clock."""

    response_id: str
    known: bool
    """False: the client came when it was already running, so its beginning was not seen."""
    began_ns: int
    item_id: str | None = None
    decision: str | None = None
    """``speak``, ``listen``, ``none`` (ended without output), or None while it is not knowable."""
    status: str | None = None
    """completed, cancelled, failed, incomplete; None while it runs."""
    reason: str | None = None
    encoding: str = audio.PCM16
    rate: int = 24_000
    received_samples: int = 0
    offset_ms: int = 0
    """Audio of this response that went to an earlier client: where this client's first sample lies."""
    delivered_samples: int = 0
    first_audio_ns: int | None = None
    played_ms: int | None = None
    acked_ms: int | None = None
    committed_ms: int | None = None
    history_ms: int | None = None
    """How much counts as heard in the server's history, by its last answer to an ack."""
    ack_at_ns: int | None = None
    """When the last ack was made."""
    ack_now: bool = False
    transcript: str = ""
    final_transcript: str | None = None
    """The server's own last word on what stands in history."""
    metadata: Mapping[str, Any] | None = None
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(characters spoken, at ms), both from the response's beginning."""

    @property
    def received_ms(self) -> int:
        """End of the audio that came, in ms from the response's beginning."""
        return self.offset_ms + self.received_samples * 1_000 // self.rate

    @property
    def delivered_ms(self) -> int:
        """End of the audio that was handed to a player."""
        return self.offset_ms + self.delivered_samples * 1_000 // self.rate

    @property
    def was_cut(self) -> bool:
        """It ended before its time: no audio of it comes any more, and what a player holds is to be thrown away."""
        return self.status == names.STATUS_CANCELLED

    @property
    def heard_text(self) -> str:
        """The text that counts as heard: what the server's history says, by its last answer to an ack, which may come after
        a cut and know more; before the first one, what it said at the cut, or else the text up to the last mark that was
        played."""
        if self.history_ms is not None:
            return self._text_at(self.history_ms)
        if self.was_cut and self.final_transcript is not None:
            return self.final_transcript
        return self._text_at(self.played_ms or 0)

    def _text_at(self, heard_ms: int) -> str:
        """The text when so much has been heard, by the rule of the server's ledger."""
        whole = self.final_transcript if self.final_transcript is not None and not self.was_cut else self.transcript
        if self.status == names.STATUS_COMPLETED and heard_ms >= self.received_ms:
            return whole
        if not self.marks and self.was_cut and self.final_transcript is not None:
            return self.final_transcript
        chars = max((chars for chars, at_ms in self.marks if at_ms <= heard_ms), default=0)
        return whole[:chars]

    def add_audio(self, data: bytes, payload: Mapping[str, Any], now_ns: int) -> None:
        """One delta came."""
        self.rate = int(payload.get("sample_rate_hz") or self.rate)
        self.encoding = audio.ENCODING_NAMES.get(str(payload.get("format")), self.encoding)
        self.received_samples += audio.sample_count(len(data), self.encoding)
        metadata = payload.get("metadata")
        if isinstance(metadata, Mapping):
            self._read_metadata(metadata)
        if self.first_audio_ns is None:
            self.first_audio_ns = now_ns
        self.decision = SPEAK

    def _read_metadata(self, metadata: Mapping[str, Any]) -> None:
        end_ms = metadata.get("audio_duration_ms")
        if not self.known and self.first_audio_ns is None and isinstance(end_ms, int | float):
            self.offset_ms = max(0, int(end_ms) - self.received_ms)
        for mark in metadata.get("audio_text_marks") or ():
            if isinstance(mark, Mapping) and len(self.marks) < MARKS_MAX:
                self.marks.append((int(mark.get("text_chars", 0)), int(mark.get("audio_end_ms", 0))))

    def note_delivered(self, size_bytes: int) -> None:
        """So much of the audio was handed to a player."""
        self.delivered_samples += audio.sample_count(size_bytes, self.encoding)

    def note_played(self, played_ms: float, committed_ms: float | None) -> None:
        """The listener has heard this much, counted from the beginning; clamped to what came."""
        heard = max(self.played_ms or 0, min(int(played_ms), self.received_ms))
        self.played_ms = heard
        if committed_ms is not None:
            self.committed_ms = max(self.committed_ms or 0, min(int(committed_ms), heard))

    def note_history(self, payload: Mapping[str, Any]) -> None:
        """The server's answer to an ack came."""
        committed_ms = payload.get("committed_ms")
        if isinstance(committed_ms, int | float):
            self.history_ms = int(committed_ms)

    def end(self, payload: Mapping[str, Any]) -> None:
        """``response.done`` came."""
        response = payload.get("response")
        response = response if isinstance(response, Mapping) else {}
        self.status = str(response.get("status") or names.STATUS_COMPLETED)
        details = response.get("status_details")
        self.reason = str(details["reason"]) if isinstance(details, Mapping) and details.get("reason") else None
        text = output_text(response.get("output"))
        if text is not None:
            self.final_transcript = text
        if self.decision is None:
            self.decision = LISTEN if self.status == names.STATUS_COMPLETED else NONE


def output_text(output: object) -> str | None:
    """The text of a ``response.output`` list: transcripts and texts of its items joined; None if it has none."""
    texts: list[str] = []
    for item in output if isinstance(output, list) else ():
        for part in (item.get("content") or ()) if isinstance(item, Mapping) else ():
            if isinstance(part, Mapping):
                text = part.get("transcript", part.get("text"))
                if isinstance(text, str):
                    texts.append(text)
    return "".join(texts) if texts else None
