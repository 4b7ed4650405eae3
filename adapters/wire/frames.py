"""Giving out numbers: the frames of one record, in order."""

from __future__ import annotations

from typing import Any

import attrs

from core.ports.projection import LIVE, Frame
from core.session.events import Output, Record


@attrs.define
class Emitter:
    """Collects what one record adds to the stream. Invariant: ``number`` is the last number given out, by anyone."""

    record: Record
    session_id: str
    number: int
    number_field: str | None
    """The payload's own field for the number, where the dialect shows it."""
    counts_only: bool = False
    """Nobody will ask for these frames: numbers are given out, and nothing else is made."""
    frames: list[Frame] = attrs.field(factory=list)

    def live(self, event: str, /, **fields: Any) -> int:
        """An event that is sent whatever is cut. Returns its number."""
        return self.add(LIVE, event, fields, self.record.epoch)

    def skip(self) -> int:
        """The number of an event that need not be made, because of ``counts_only``. Returns it."""
        self.number += 1
        return self.number

    def add(
        self,
        kind: str,
        event: str,
        fields: dict[str, Any],
        epoch: int,
        response_id: str | None = None,
        output: Output | None = None,
        audio_field: str = "",
    ) -> int:
        """Any event. ``output`` with ``audio_field``: the event carries that unit's audio."""
        number = self.skip()
        if self.counts_only:
            return number
        payload: dict[str, Any] = {"type": event, "event_id": event_id(self.session_id, self.number)}
        if self.number_field is not None:
            payload[self.number_field] = self.number
        payload.update(fields)
        carries = output if audio_field else None
        self.frames.append(
            Frame(
                self.number,
                self.record.position,
                epoch,
                kind,
                payload,
                response_id,
                carries.digest if carries else "",
                audio_field,
                carries.rate if carries else 24_000,
                output.start_ms if output else 0,
                carries.audio_ms if carries else 0,
                carries.size_bytes if carries else 0,
            )
        )
        return self.number


def event_id(session_id: str, number: int) -> str:
    """The id of a numbered event: the same on every server and after every resume."""
    return f"event_{session_id}_{number}"
