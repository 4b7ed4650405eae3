"""The log as duplex clients see it: OpenAI's events with their numbers shown, and what is said of overlap and playback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.wire.answers import Answer, Ending
from adapters.wire.duplex.errors import refusal_body
from adapters.wire.duplex.session_object import playback_object, session_object
from adapters.wire.frames import Emitter
from adapters.wire.openai import items
from adapters.wire.openai.projection import OUTPUT_CLEAR, OpenAIProjection
from adapters.wire.schema import names
from core.ports.projection import LIVE, Credentials
from core.session import events as e
from core.session.state import SessionState

BARGE_IN = "barge_in"

_CANCEL_REASONS = frozenset({"client_cancelled", BARGE_IN, OUTPUT_CLEAR, "turn_detected"})
_EXPIRED = frozenset({"idle_ttl_expired", "disconnect_grace_expired", "pause_expired", "session_expired"})


class DuplexProjection(OpenAIProjection):
    """``server_event_seq`` in every numbered event; see OpenAIProjection for the rest."""

    dialect: str = "duplex"
    number_field: str | None = names.NUMBER

    def greeting(self, state: SessionState, credentials: Credentials | None) -> list[Mapping[str, Any]]:
        """session.created, with what a client needs to come back."""
        created: dict[str, Any] = {"type": names.SESSION_CREATED, "session": self.session(state)}
        if credentials is not None:
            created["attachment_generation"] = credentials.generation
            created["resume_token"] = credentials.resume_token
        return [created]

    def session(self, state: SessionState) -> dict[str, Any]:
        """The session object."""
        return session_object(state)

    def refusal(self, event: e.Refused) -> dict[str, Any]:
        """The ``error`` object of a refused command."""
        return refusal_body(event)

    def cancel_reason(self, reason: str) -> str:
        """Four reasons are known; every other cut was the server's."""
        return reason if reason in _CANCEL_REASONS else "client_cancelled"

    def failure(self, reason: str) -> dict[str, Any]:
        """status_details of a failed answer."""
        return {"type": "failed", "reason": reason or "model_error"}

    # -- the session and the user's side --------------------------------------------------------------------------

    def _attached(self, emit: Emitter, event: e.Attached, state: SessionState) -> None:
        """A fresh client gets the session object once more, numbered: its stream begins with it."""
        if event.resumed_from is None:
            emit.live(names.SESSION_UPDATED, session=self.session(state))

    def _session_closed(self, emit: Emitter, event: e.SessionClosed, state: SessionState) -> None:
        if event.reason in _EXPIRED:
            emit.live(names.SESSION_EXPIRED, session_id=state.session_id, reason=event.reason)
        closed = {"type": names.SESSION_CLOSED, "session_id": state.session_id, "reason": event.reason}
        emit.live(names.SESSION_CLOSED, session_id=state.session_id, reason=event.reason, event=closed)

    def _overlap_decided(self, emit: Emitter, event: e.OverlapDecided, state: SessionState) -> None:
        emit.live(
            names.OVERLAP_DECISION,
            session_id=state.session_id,
            epoch=state.epoch,
            policy=state.config.overlap_policy,
            action=event.action,
            reason=event.reason,
            metadata={"speech_ms": event.speech_ms, "item_id": event.item_id or None},
        )
        super()._overlap_decided(emit, event, state)

    def _commit(self, emit: Emitter, event: e.Commit, state: SessionState) -> None:
        item = items.user_turn(state.items[event.item_id], None)
        before = self.item_before(emit, state, event.item_id)
        self.item_added(emit, state, item)
        detail = {
            "is_speech": event.speech,
            "empty": not event.speech,
            "no_response": not event.create_response,
            "by": event.by,
            "audio_start_ms": event.start_ms,
            "audio_end_ms": event.end_ms,
        }
        emit.live(names.AUDIO_COMMITTED, previous_item_id=before, item_id=event.item_id, event=detail)
        self._item_event(emit, names.ITEM_DONE, state, item)
        if not event.speech:
            self._listen(emit, state, "silence_or_noise", None)

    def _playback_ack(self, emit: Emitter, event: e.PlaybackAck, state: SessionState) -> None:
        super()._playback_ack(emit, event, state)
        response = state.responses.get(event.response_id)
        if event.source != "client" or response is None:
            return
        if emit.counts_only:
            emit.skip()
            return
        acknowledged = {
            "type": names.PLAYBACK_ACK,
            "session_id": state.session_id,
            "epoch": state.epoch,
            "response_id": event.response_id,
            "item_id": response.item_id,
            "played_ms": event.played_ms,
            "committed_ms": event.committed_ms,
            "truncate": event.truncate,
            "playback": playback_object(response),
            "history_committed": True,
            "event_id": event.event_id,
        }
        emit.live(names.PLAYBACK_ACKNOWLEDGED, event=acknowledged)

    def _epoch_bump(self, emit: Emitter, event: e.EpochBump, state: SessionState) -> None:
        """A barge-in that found nothing to cut is answered as vLLM-Omni does; no input is lost by it."""
        super()._epoch_bump(emit, event, state)
        if event.reason == BARGE_IN and event.response_id is None:
            emit.live(names.AUDIO_CLEARED)

    # -- items and answers ----------------------------------------------------------------------------------------

    def item_added(self, emit: Emitter, state: SessionState, item: dict[str, Any], kind: str = LIVE) -> int:
        """An item is announced twice: under GA's name and under the older one."""
        first = self._item_event(emit, names.ITEM_ADDED, state, item, kind)
        self._item_event(emit, names.ITEM_CREATED, state, item, kind)
        return first

    def announce_item(
        self, emit: Emitter, answer: Answer, state: SessionState, item: dict[str, Any], index: int, kind: str = LIVE
    ) -> int:
        """An output item begins: here in the conversation first."""
        first = self.item_added(emit, state, item, kind)
        fields = {"response_id": answer.response_id, "output_index": index, "item": item}
        emit.add(kind, names.OUTPUT_ITEM_ADDED, fields, answer.epoch, answer.response_id)
        return first

    def spoke(self, emit: Emitter, answer: Answer, state: SessionState) -> None:
        """The model took the word."""
        metadata = {"session_id": state.session_id, "epoch": answer.epoch, "model_speak": True}
        emit.live(names.RESPONSE_SPEAK, **self._place(answer), metadata=metadata)

    def listened(self, emit: Emitter, answer: Answer, event: e.Output, state: SessionState) -> None:
        """The model chose to stay silent for a unit."""
        self._listen(emit, state, "model_listen", answer.response_id)

    def _listen(self, emit: Emitter, state: SessionState, reason: str, response_id: str | None) -> None:
        response: dict[str, Any] = {
            "object": "realtime.response",
            "status": "listening",
            "metadata": {"reason": reason, "session_id": state.session_id, "epoch": state.epoch},
        }
        fields: dict[str, Any] = {"session_id": state.session_id, "epoch": state.epoch, "response": response}
        if response_id is not None:
            response["id"] = fields["response_id"] = response_id
        emit.live(names.RESPONSE_LISTEN, **fields)

    def delta_fields(self, answer: Answer, event: e.Output, state: SessionState) -> dict[str, Any]:
        """Where this unit lies in its answer, and where its words end."""
        metadata = {
            "session_id": state.session_id,
            "epoch": answer.epoch,
            "model_speak": True,
            "playback": playback_object(state.responses.get(answer.response_id)),
            "audio_duration_ms": event.start_ms + event.audio_ms,
            "audio_text_marks": [{"text_chars": mark.chars, "audio_end_ms": mark.audio_end_ms} for mark in event.marks],
        }
        return {**super().delta_fields(answer, event, state), "metadata": metadata}

    def response_metadata(self, answer: Answer, ending: Ending | None, state: SessionState) -> dict[str, Any] | None:
        """The client's own metadata, the fence, and the dead numbers as ranges."""
        metadata: dict[str, Any] = {**answer.metadata, "session_id": state.session_id, "epoch": answer.epoch}
        if ending is not None:
            metadata["playback"] = playback_object(state.responses.get(answer.response_id))
            if ending.skipped:
                metadata["skipped"] = ending.skipped
        return metadata

    def _response_fields(
        self,
        emit: Emitter,
        answer: Answer,
        ending: Ending | None,
        state: SessionState,
        output: list[dict[str, Any]],
    ) -> dict[str, Any]:
        fields = super()._response_fields(emit, answer, ending, state, output)
        return {"response_id": answer.response_id, **fields}

    def response_begun(self, emit: Emitter, state: SessionState) -> None:
        """Rate limits come at the end here."""

    def response_over(self, emit: Emitter, answer: Answer, ending: Ending) -> None:
        """Live even when the end is not: its number belongs to no answer, so no cut could announce its death."""
        emit.live(names.RATE_LIMITS, rate_limits=[])
