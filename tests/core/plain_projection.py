"""The plainest projection that keeps the stream's rules: a record is a frame, and an answer has one end that arrives.

Deltas, calls and the end of an answer that ran its course die with a cut that finds them above its cursor; the cut then
brings the end anew, as a frame that cannot die, and names the numbers that died. A call that a cut finds handed over stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from core.ports.projection import DELTA, LIVE, TERMINAL, Credentials, Frame, Resumption
from core.session import events as e
from core.session.state import SessionState

CREATED = "session.created"
RESUMED = "session.resumed"
END = "end"
CLEARED = "cleared"


@attrs.define
class Answer:
    """``mortal``: the numbers that a cut below them kills."""

    epoch: int
    mortal: list[int] = attrs.field(factory=list)
    end_number: int | None = None
    cut_cursor: int | None = None
    settled: bool = False

    def dead_above(self, cursor: int) -> list[tuple[int, int]]:
        """Ranges of numbers."""
        ranges: list[tuple[int, int]] = []
        for number in self.mortal:
            if number <= cursor:
                continue
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1] = (ranges[-1][0], number)
            else:
                ranges.append((number, number))
        return ranges


class PlainProjection:
    """See core.ports.projection.Projection."""

    dialect = "plain"
    version = 1

    def __init__(self) -> None:
        self._number = 0
        self._answers: dict[str, Answer] = {}

    @property
    def number(self) -> int:
        return self._number

    def fold(self, record: e.Record, state: SessionState) -> list[Frame]:
        event = record.event
        match event:
            case e.Output():
                return [self._delta(record, event)]
            case e.ToolCalled():
                return [self._call(record, event)]
            case e.ResponseStarted():
                self._answers[event.response_id] = Answer(record.epoch)
                return [self._live(record, response_id=event.response_id)]
            case e.ResponseEnded():
                return [self._end(record, event.response_id, event.status)]
            case e.EpochBump(disposition="cut"):
                return [self._live(record), *self._cut(record, event.cursor)]
            case _:
                return [self._live(record, event_id=getattr(event, "event_id", None))]

    def pass_over(self, record: e.Record, state: SessionState) -> None:
        self.fold(record, state)

    def greeting(self, state: SessionState, credentials: Credentials | None) -> list[Mapping[str, Any]]:
        assert credentials is not None
        return [{"type": CREATED, "token": credentials.resume_token, "session": state.session_id}]

    def resumed(self, state: SessionState, credentials: Credentials, resumption: Resumption) -> Mapping[str, Any]:
        return {
            "type": RESUMED,
            "token": credentials.resume_token,
            "skipped": resumption.skipped,
            "input_ms": resumption.input_ms,
            "last_event_id": resumption.last_event_id,
        }

    def _frame(self, record: e.Record, kind: str, epoch: int, payload: dict[str, Any], **more: Any) -> Frame:
        self._number += 1
        return Frame(self._number, record.position, epoch, kind, payload, **more)

    def _live(self, record: e.Record, **fields: Any) -> Frame:
        return self._frame(record, LIVE, record.epoch, {"type": e.TAGS[type(record.event)], **fields})

    def _delta(self, record: e.Record, event: e.Output) -> Frame:
        answer = self._answers[event.response_id]
        payload = {"type": "delta", "response_id": event.response_id, "text": event.text, "start_ms": event.start_ms}
        frame = self._frame(
            record,
            DELTA,
            answer.epoch,
            payload,
            response_id=event.response_id,
            digest=event.digest,
            audio_field="audio",
            rate=event.rate,
            start_ms=event.start_ms,
            audio_ms=event.audio_ms,
            size_bytes=event.size_bytes,
        )
        answer.mortal.append(frame.number)
        return frame

    def _call(self, record: e.Record, event: e.ToolCalled) -> Frame:
        answer = self._answers[event.response_id]
        payload = {"type": "call", "response_id": event.response_id, "call_id": event.call_id}
        frame = self._frame(record, TERMINAL, answer.epoch, payload, response_id=event.response_id)
        answer.mortal.append(frame.number)
        return frame

    def _end(self, record: e.Record, response_id: str, status: str) -> Frame:
        answer = self._answers[response_id]
        if answer.cut_cursor is not None:
            answer.settled = True
            return self._ending(record, response_id, status, answer.dead_above(answer.cut_cursor), LIVE)
        frame = self._ending(record, response_id, status, [], TERMINAL)
        answer.end_number = frame.number
        answer.mortal.append(frame.number)
        return frame

    def _ending(
        self, record: e.Record, response_id: str, status: str, skipped: list[tuple[int, int]], kind: str
    ) -> Frame:
        payload = {"type": END, "response_id": response_id, "status": status, "skipped": skipped}
        return self._frame(record, kind, self._answers[response_id].epoch, payload, response_id=response_id)

    def _cut(self, record: e.Record, cursor: int) -> list[Frame]:
        made = []
        for response_id, answer in self._answers.items():
            if answer.settled:
                continue
            if answer.end_number is None:
                answer.cut_cursor = cursor
            elif answer.end_number > cursor:
                answer.settled = True
                made.append(self._ending(record, response_id, "cancelled", answer.dead_above(cursor), LIVE))
            else:
                answer.settled = True
                payload = {"type": CLEARED, "response_id": response_id}
                made.append(self._frame(record, LIVE, answer.epoch, payload, response_id=response_id))
        return made
