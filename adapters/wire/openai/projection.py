"""The log as OpenAI's clients see it: a fold of records into numbered events.

Theory. Most records are one or a few events. An answer is the exception: what it says (deltas) and its end come long
before they are played, and a cut kills what was not handed over. So deltas are ``DELTA`` frames, the end of an answer
that ran its course is ``TERMINAL``, and a cut with cursor c brings the answer's end anew: ``LIVE`` frames above the dead
ones, with the text that was heard and the numbers that died. Then whatever a sender does with c, the client is told of
exactly one end. An answer whose end was handed over, and which still plays, is told to be cleared instead.

A function call is ``TERMINAL`` too: one whose last frame is at or below c was made, and whoever lost it on its way gets it
at the resume. Of one that was only begun, the frames at or below c stand as well, and behind the cut follows that its item
is deleted; so whoever hears of it, then or at a resume, hears of both.

An answer's message is announced when its first unit comes. One that was cut before that leaves no trace but its
response.created and response.done.

The duplex dialect extends this class; what differs is in the methods that say so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from adapters.wire.answers import Answer, Answers, Call, Ending
from adapters.wire.frames import Emitter
from adapters.wire.openai import items
from adapters.wire.openai.errors import refusal_body
from adapters.wire.openai.session_object import session_object
from adapters.wire.openai.versions import NEWEST, VERSIONS
from adapters.wire.problems import error_body
from adapters.wire.schema import names
from core.ports.projection import DELTA, LIVE, TERMINAL, Credentials, Frame, Resumption
from core.session import events as e
from core.session.decisions.cut import LANE_FULL
from core.session.events import Record
from core.session.ledger import heard_text
from core.session.overlap import CLIENT_REASONS
from core.session.state import SessionState, short_id

TURN_DETECTED = "turn_detected"
CLIENT_CANCELLED = "client_cancelled"
OUTPUT_CLEAR = "output_audio_buffer_clear"


@attrs.define
class Segment:
    """Speech that the detector found. ``shown``: the client was told that it began."""

    item_id: str
    start_ms: int
    shown: bool


class OpenAIProjection:
    """See core.ports.projection.Projection. Keeps nothing but the last answers and the open speech segment."""

    dialect: str = "openai"
    number_field: str | None = None

    def __init__(self, version: int = NEWEST) -> None:
        self.version = version
        self._rules = VERSIONS[version]
        self._number = 0
        self._answers = Answers()
        self._segment: Segment | None = None
        self._bumped: str | None = None
        """The answer that the last cut named; the others it hit are named by their output_invalidated."""
        self._cut_cursor = 0
        self._counting: Emitter | None = None
        """Serves every record that is passed over."""

    @property
    def number(self) -> int:
        """The last number given out."""
        return self._number

    def fold(self, record: Record, state: SessionState) -> list[Frame]:
        """The frames that ``record`` adds; ``state`` is the machine's state after it."""
        project = _PROJECT.get(type(record.event))
        if project is None:
            return []
        emit = Emitter(record, state.session_id, self._number, self.number_field)
        getattr(self, project)(emit, record.event, state)
        self._number = emit.number
        return emit.frames

    def pass_over(self, record: Record, state: SessionState) -> None:
        """The same without the frames: nine tenths of what a long log costs to project are payloads of its past."""
        event = record.event
        project = _PROJECT.get(type(event))
        if project is not None:
            emit = self._counting
            if emit is None:
                emit = self._counting = Emitter(record, state.session_id, 0, self.number_field, counts_only=True)
            emit.record, emit.number = record, self._number
            getattr(self, project)(emit, event, state)
            self._number = emit.number

    def greeting(self, state: SessionState, credentials: Credentials | None) -> list[Mapping[str, Any]]:
        """What opens a fresh attachment."""
        return [{"type": names.SESSION_CREATED, "session": self.session(state)}]

    def resumed(self, state: SessionState, credentials: Credentials, resumption: Resumption) -> Mapping[str, Any]:
        """What opens a resumed attachment."""
        return {
            "type": names.SESSION_RESUMED,
            "session_id": state.session_id,
            "session": self.session(state),
            "attachment_generation": credentials.generation,
            "resume_token": credentials.resume_token,
            "skipped": [list(pair) for pair in resumption.skipped],
            "input_ms": resumption.input_ms,
            "last_event_id": resumption.last_event_id,
        }

    # -- where dialects differ ------------------------------------------------------------------------------------

    def session(self, state: SessionState) -> dict[str, Any]:
        """The session object."""
        return session_object(state)

    def refusal(self, event: e.Refused) -> dict[str, Any]:
        """The ``error`` object of a refused command."""
        return refusal_body(event)

    def cancel_reason(self, reason: str) -> str:
        """What status_details.reason of a cancelled answer says; GA knows two."""
        return TURN_DETECTED if reason == TURN_DETECTED else CLIENT_CANCELLED

    def item_added(self, emit: Emitter, state: SessionState, item: dict[str, Any], kind: str = LIVE) -> int:
        """An item appears in the conversation."""
        return self._item_event(emit, names.ITEM_ADDED, state, item, kind)

    def response_metadata(self, answer: Answer, ending: Ending | None, state: SessionState) -> dict[str, Any] | None:
        """The client's own metadata, and the dead numbers as text: GA's metadata maps strings to strings."""
        extra = {}
        if ending is not None and ending.skipped:
            extra["skipped"] = ",".join(f"{first}-{last}" for first, last in ending.skipped)
        return {**answer.metadata, **extra} or None

    def delta_fields(self, answer: Answer, event: e.Output, state: SessionState) -> dict[str, Any]:
        """What a delta says beside its audio. Encoding and rate are for whoever encodes it, and no client minds them."""
        output = state.config.output_format
        return {"format": output.encoding, "sample_rate_hz": output.rate}

    def response_begun(self, emit: Emitter, state: SessionState) -> None:
        """After response.created."""
        emit.live(names.RATE_LIMITS, rate_limits=[])

    def response_over(self, emit: Emitter, answer: Answer, ending: Ending) -> None:
        """After response.done."""

    def failure(self, reason: str) -> dict[str, Any]:
        """status_details of a failed answer."""
        return {"type": "failed", "error": {"type": "server_error", "code": reason or "model_error", "message": reason}}

    # -- the session and the user's side --------------------------------------------------------------------------

    def _config_changed(self, emit: Emitter, event: e.ConfigChanged, state: SessionState) -> None:
        emit.live(names.SESSION_UPDATED, session=self.session(state))

    def _session_closed(self, emit: Emitter, event: e.SessionClosed, state: SessionState) -> None:
        if event.reason == "session_expired" and state.config.max_session_ms is not None:
            minutes = state.config.max_session_ms // 60_000
            text = f"Your session hit the maximum duration of {minutes} minutes."
            emit.live(names.ERROR, error=error_body("session_expired", text))
        elif event.reason == LANE_FULL:
            text = "The conversation is longer than the model can hold."
            emit.live(names.ERROR, error=error_body(LANE_FULL, text))

    def _attached(self, emit: Emitter, event: e.Attached, state: SessionState) -> None:
        """Nothing: GA's session.created says it all."""

    def _refused(self, emit: Emitter, event: e.Refused, state: SessionState) -> None:
        emit.live(names.ERROR, error=self.refusal(event))

    def _input_cleared(self, emit: Emitter, event: e.InputCleared, state: SessionState) -> None:
        self._segment = None
        emit.live(names.AUDIO_CLEARED)

    def _speech_started(self, emit: Emitter, event: e.SpeechStarted, state: SessionState) -> None:
        """Speech over an answer is kept back until it is judged: it may be a remark that interrupts nothing."""
        self._segment = Segment(event.item_id, event.start_ms, shown=False)
        if not event.overlap:
            self._show_speech(emit, self._segment)

    def _speech_stopped(self, emit: Emitter, event: e.SpeechStopped, state: SessionState) -> None:
        segment = self._segment
        if segment is None or segment.item_id != event.item_id:
            return
        if segment.shown:
            emit.live(names.SPEECH_STOPPED, audio_end_ms=event.end_ms, item_id=event.item_id)

    def _overlap_decided(self, emit: Emitter, event: e.OverlapDecided, state: SessionState) -> None:
        segment = self._segment
        is_turn = event.action == "barge_in" or (event.action == "listen" and event.reason in CLIENT_REASONS)
        if not is_turn or segment is None or segment.item_id != event.item_id or segment.shown:
            return
        self._show_speech(emit, segment)

    def _show_speech(self, emit: Emitter, segment: Segment) -> None:
        segment.shown = True
        emit.live(names.SPEECH_STARTED, audio_start_ms=segment.start_ms, item_id=segment.item_id)

    def _commit(self, emit: Emitter, event: e.Commit, state: SessionState) -> None:
        item = items.user_turn(state.items[event.item_id], None)
        before = self.item_before(emit, state, event.item_id)
        emit.live(names.AUDIO_COMMITTED, previous_item_id=before, item_id=event.item_id)
        self.item_added(emit, state, item)
        self._item_event(emit, names.ITEM_DONE, state, item)

    def _input_transcript(self, emit: Emitter, event: e.InputTranscript, state: SessionState) -> None:
        item = state.items.get(event.item_id)
        audio_ms = item.audio_ms if item is not None and self._rules.tells_duration else 0
        usage = {"type": "duration", "seconds": audio_ms / 1_000}
        said = {"item_id": event.item_id, "content_index": 0, "transcript": event.text}
        emit.live(names.INPUT_TRANSCRIPT_DONE, **said, usage=usage)

    def item_before(self, emit: Emitter, state: SessionState, item_id: str) -> str | None:
        """The item that the client sees before this one."""
        if emit.counts_only:
            return None
        return items.previous_item_id(state, item_id, self._answers.unopened_items())

    # -- items ----------------------------------------------------------------------------------------------------

    def _item_event(
        self, emit: Emitter, name: str, state: SessionState, item: dict[str, Any], kind: str = LIVE, epoch: int = 0
    ) -> int:
        fields = {"previous_item_id": self.item_before(emit, state, item["id"]), "item": item}
        return emit.add(kind, name, fields, epoch or emit.record.epoch)

    def _item_created(self, emit: Emitter, event: e.ItemCreated, state: SessionState) -> None:
        item = items.client_item(event.item_id, event.item)
        self.item_added(emit, state, item)
        self._item_event(emit, names.ITEM_DONE, state, item)

    def _item_deleted(self, emit: Emitter, event: e.ItemDeleted, state: SessionState) -> None:
        emit.live(names.ITEM_DELETED, item_id=event.item_id)

    def _item_retrieved(self, emit: Emitter, event: e.ItemRetrieved, state: SessionState) -> None:
        item = state.items.get(event.item_id)
        if item is not None:
            emit.live(names.ITEM_RETRIEVED, item=items.render(state, item))

    def _playback_ack(self, emit: Emitter, event: e.PlaybackAck, state: SessionState) -> None:
        response = state.responses.get(event.response_id)
        if event.truncate and response is not None:
            emit.live(names.ITEM_TRUNCATED, item_id=response.item_id, content_index=0, audio_end_ms=event.committed_ms)

    # -- answers --------------------------------------------------------------------------------------------------

    def _response_started(self, emit: Emitter, event: e.ResponseStarted, state: SessionState) -> None:
        metadata = json.loads(event.metadata)
        answer = Answer(
            event.response_id,
            event.item_id,
            state.epoch,
            "audio" in event.modalities,
            metadata if isinstance(metadata, dict) else {},
        )
        self._answers.add(answer)
        emit.live(names.RESPONSE_CREATED, **self._response_fields(emit, answer, None, state, []))
        self.response_begun(emit, state)

    def _output(self, emit: Emitter, event: e.Output, state: SessionState) -> None:
        answer = self._answers.get(event.response_id)
        if answer is None:
            return
        if event.kind == "listen":
            self.listened(emit, answer, event, state)
            return
        if answer.item_index is None:
            self._open_message(emit, answer, state)
        if emit.counts_only:
            first, emit.number = emit.number + 1, emit.number + (2 if event.samples else 1)  # its sound, and its words
            answer.mark_deltas(first, emit.number)
            return
        response = state.responses.get(event.response_id)
        text = "" if response is not None and response.limit_ms is not None else event.text
        place = self._place(answer)
        first = emit.number + 1
        if event.samples:
            fields = {**place, **self.delta_fields(answer, event, state)}
            emit.add(DELTA, names.AUDIO_DELTA, fields, answer.epoch, answer.response_id, event, "delta")
        name = names.TRANSCRIPT_DELTA if answer.spoken else names.TEXT_DELTA
        emit.add(DELTA, name, {**place, "delta": text}, answer.epoch, answer.response_id, event)
        answer.mark_deltas(first, emit.number)

    def listened(self, emit: Emitter, answer: Answer, event: e.Output, state: SessionState) -> None:
        """The model chose to stay silent for a unit: GA has no word for it."""

    def spoke(self, emit: Emitter, answer: Answer, state: SessionState) -> None:
        """The message was announced, the first delta follows."""

    def _open_message(self, emit: Emitter, answer: Answer, state: SessionState) -> None:
        answer.item_index = answer.take_index()
        item = items.message(answer.item_id, "assistant", [], items.IN_PROGRESS)
        self.announce_item(emit, answer, state, item, answer.item_index)
        part = {"type": "audio", "transcript": ""} if answer.spoken else {"type": "text", "text": ""}
        emit.live(names.CONTENT_PART_ADDED, **self._place(answer), part=part)
        self.spoke(emit, answer, state)

    def announce_item(
        self, emit: Emitter, answer: Answer, state: SessionState, item: dict[str, Any], index: int, kind: str = LIVE
    ) -> int:
        """An output item begins: first in the response, then in the conversation. Returns the first number."""
        fields = {"response_id": answer.response_id, "output_index": index, "item": item}
        first = emit.add(kind, names.OUTPUT_ITEM_ADDED, fields, answer.epoch, answer.response_id)
        self.item_added(emit, state, item, kind)
        return first

    def _tool_called(self, emit: Emitter, event: e.ToolCalled, state: SessionState) -> None:
        """A call that a cut finds undelivered is not made (the machine says the same): all its events are mortal."""
        answer = self._answers.get(event.response_id)
        if answer is None:
            return
        kind, index = self._rules.call_kind, answer.take_index()
        call = items.function_call(event.item_id, event.call_id, event.name, event.arguments)
        begun = {**call, "status": items.IN_PROGRESS, "arguments": ""}
        first = self.announce_item(emit, answer, state, begun, index, kind)
        place = {
            "response_id": answer.response_id,
            "item_id": event.item_id,
            "output_index": index,
            "call_id": event.call_id,
        }
        done = {**place, "name": event.name, "arguments": event.arguments}
        item_done = {"response_id": answer.response_id, "output_index": index, "item": call}
        emit.add(kind, names.ARGUMENTS_DELTA, {**place, "delta": event.arguments}, answer.epoch, answer.response_id)
        emit.add(kind, names.ARGUMENTS_DONE, done, answer.epoch, answer.response_id)
        emit.add(kind, names.OUTPUT_ITEM_DONE, item_done, answer.epoch, answer.response_id)
        self._item_event(emit, names.ITEM_DONE, state, call, kind, answer.epoch)
        answer.calls.append(Call(first, emit.number, call))
        answer.mark_deltas(first, emit.number)

    def _response_ended(self, emit: Emitter, event: e.ResponseEnded, state: SessionState) -> None:
        answer = self._answers.get(event.response_id)
        if answer is None:
            return
        answer.status, answer.reason, answer.usage = event.status, event.reason, event.usage
        self._end(emit, answer, state, event.status, event.reason, answer.cut_cursor)

    def _epoch_bump(self, emit: Emitter, event: e.EpochBump, state: SessionState) -> None:
        self._bumped, self._cut_cursor = event.response_id, event.cursor
        if event.disposition != "cut":
            return
        if event.reason == OUTPUT_CLEAR and event.response_id is not None:
            emit.live(names.OUTPUT_CLEARED, response_id=event.response_id)
        for answer in self._answers:
            if answer.settled:
                continue
            if answer.done_number is None:
                answer.cut_cursor = event.cursor
            elif answer.done_number > event.cursor:
                self._end_again(emit, answer, event, state)
            else:
                answer.settled = answer.handed_over = True
                if answer.response_id == event.response_id and event.reason != OUTPUT_CLEAR:
                    emit.live(names.OUTPUT_CLEARED, response_id=answer.response_id)

    def _end_again(self, emit: Emitter, answer: Answer, event: e.EpochBump, state: SessionState) -> None:
        """Its end is dead with the cut. Cancelled, unless everything it said was handed over already."""
        untouched = answer.last_delta <= event.cursor and answer.response_id != event.response_id
        answer.handed_over = untouched and self._rules.clears_untouched
        status = answer.status if untouched else "cancelled"
        self._end(emit, answer, state, status, answer.reason if untouched else event.reason, event.cursor)

    def _output_invalidated(self, emit: Emitter, event: e.OutputInvalidated, state: SessionState) -> None:
        """A cut hit more than one answer: those beside the newest, handed over and still playing, are named here."""
        answer = self._answers.get(event.response_id)
        if answer is not None:
            for call in answer.calls:
                if call.item["id"] in event.calls and call.first <= self._cut_cursor:  # it was begun, and never asked
                    emit.live(names.ITEM_DELETED, item_id=call.item["id"])
        if answer is not None and answer.handed_over and event.response_id != self._bumped:
            emit.live(names.OUTPUT_CLEARED, response_id=event.response_id)

    def _end(
        self, emit: Emitter, answer: Answer, state: SessionState, status: str, reason: str, cursor: int | None
    ) -> None:
        """The end frames; ``cursor`` is that of the cut which ends it, None when it ran its course."""
        kind = TERMINAL if cursor is None else LIVE
        skipped = [] if cursor is None else answer.dead_above(cursor)
        ending = Ending(
            status, reason, kind, "" if emit.counts_only else self._end_text(answer, state, status, cursor), skipped
        )
        shown = [call.item for call in answer.calls if cursor is None or call.last <= cursor]
        first = emit.number + 1
        if answer.item_index is not None:
            shown.insert(min(answer.item_index, len(shown)), self._close_message(emit, answer, state, ending))
        fields = self._response_fields(emit, answer, ending, state, shown)
        answer.done_number = emit.add(kind, names.RESPONSE_DONE, fields, answer.epoch, answer.response_id)
        answer.settled = cursor is not None
        if cursor is None:
            answer.mark_mortal(first, answer.done_number)
        self.response_over(emit, answer, ending)

    def _end_text(self, answer: Answer, state: SessionState, status: str, cursor: int | None) -> str:
        """Of an answer that was cut or truncated, what was heard; of any other, all of it."""
        response = state.responses[answer.response_id]  # both forget the same answers at the same time
        cut_short = cursor is not None and status != items.COMPLETED
        if cut_short or response.cut or response.limit_ms is not None:
            return heard_text(response)
        return response.text

    def _close_message(self, emit: Emitter, answer: Answer, state: SessionState, ending: Ending) -> dict[str, Any]:
        place, epoch, text = self._place(answer), answer.epoch, ending.text
        status = items.COMPLETED if ending.status == items.COMPLETED else items.INCOMPLETE
        item = items.assistant_message(answer.item_id, answer.spoken, text, status)

        def add(name: str, **fields: Any) -> None:
            emit.add(ending.kind, name, fields, epoch, answer.response_id)

        if answer.spoken:
            add(names.AUDIO_DONE, **place)
            add(names.TRANSCRIPT_DONE, **place, transcript=text)
            part = {"type": "audio", "transcript": text}
        else:
            add(names.TEXT_DONE, **place, text=text)
            part = {"type": "text", "text": text}
        add(names.CONTENT_PART_DONE, **place, part=part)
        add(names.OUTPUT_ITEM_DONE, response_id=answer.response_id, output_index=answer.item_index, item=item)
        self._item_event(emit, names.ITEM_DONE, state, item, ending.kind, epoch)
        return item

    def _place(self, answer: Answer) -> dict[str, Any]:
        return {
            "response_id": answer.response_id,
            "item_id": answer.item_id,
            "output_index": answer.item_index or 0,
            "content_index": 0,
        }

    def _response_fields(
        self,
        emit: Emitter,
        answer: Answer,
        ending: Ending | None,
        state: SessionState,
        output: list[dict[str, Any]],
    ) -> dict[str, Any]:
        if emit.counts_only:
            return {}
        config = state.config
        response = state.responses.get(answer.response_id)
        apart = response is not None and response.out_of_band
        shape: dict[str, Any] = {
            "object": "realtime.response",
            "id": answer.response_id,
            "status": ending.status if ending else items.IN_PROGRESS,
            "status_details": self._status_details(ending),
            "output": output,
            "conversation_id": None if apart else f"conv_{short_id(state.session_id)}",
            "output_modalities": ["audio"] if answer.spoken else ["text"],
            "max_output_tokens": config.max_output_tokens or "inf",
            "audio": {"output": {"voice": config.voice or "default"}},
            "usage": items.usage(answer.usage) if ending else None,
            "metadata": self.response_metadata(answer, ending, state),
        }
        return {"response": shape}

    def _status_details(self, ending: Ending | None) -> dict[str, Any] | None:
        if ending is None or ending.status == items.COMPLETED:
            return None
        if ending.status == "failed":
            return self.failure(ending.reason)
        if ending.status == "cancelled":
            return {"type": "cancelled", "reason": self.cancel_reason(ending.reason)}
        return {"type": ending.status, "reason": ending.reason}


_PROJECT: dict[type, str] = {
    e.ConfigChanged: "_config_changed",
    e.SessionClosed: "_session_closed",
    e.Attached: "_attached",
    e.Refused: "_refused",
    e.InputCleared: "_input_cleared",
    e.SpeechStarted: "_speech_started",
    e.SpeechStopped: "_speech_stopped",
    e.OverlapDecided: "_overlap_decided",
    e.Commit: "_commit",
    e.InputTranscript: "_input_transcript",
    e.ItemCreated: "_item_created",
    e.ItemDeleted: "_item_deleted",
    e.ItemRetrieved: "_item_retrieved",
    e.PlaybackAck: "_playback_ack",
    e.ResponseStarted: "_response_started",
    e.Output: "_output",
    e.ToolCalled: "_tool_called",
    e.ResponseEnded: "_response_ended",
    e.EpochBump: "_epoch_bump",
    e.OutputInvalidated: "_output_invalidated",
}
"""Which method projects an event; records that are not in the table add nothing to the stream."""
