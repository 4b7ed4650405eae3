"""The answers of a session as the client sees them: which run, what came of each, and what was heard.

Bounded: the last ``RESPONSES_KEPT`` responses are remembered, ended ones forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from adapters.client.numbering import NumberLine
from adapters.client.responses import LISTEN, SPEAK, ResponseState
from adapters.wire.schema import audio, names
from adapters.wire.schema.shapes import skipped_of_done

RESPONSES_KEPT = 64
RESPONSES_REACKED = 4
MS = 1_000_000


class Conversation:
    """Folds server events into responses, and makes playback acks out of what the listener reports."""

    def __init__(self, line: NumberLine, ack_ms: int) -> None:
        self.responses: OrderedDict[str, ResponseState] = OrderedDict()
        self.stale_deltas = 0
        self._line = line
        self._ack_ns = ack_ms * MS
        self._announced: list[ResponseState] = []
        self._told: OrderedDict[str, None] = OrderedDict()
        self._encoding = audio.PCM16
        self._rate = 24_000

    def set_output_format(self, encoding: str, rate: int) -> None:
        """What a delta is in when it does not say so itself."""
        self._encoding, self._rate = encoding, rate

    def take_announced(self) -> list[ResponseState]:
        """Responses whose decision became known since the last call."""
        announced, self._announced = self._announced, []
        return announced

    # -- events ---------------------------------------------------------------------------------------------------

    def apply(self, type_: str, payload: Mapping[str, Any], now_ns: int) -> bytes | None:
        """Fold one event in; the audio of a delta, b"" for other events, None for a delta that nobody may hear."""
        match type_:
            case names.RESPONSE_CREATED:
                self._begin(_response_id(payload), now_ns, known=True)
            case names.AUDIO_DELTA:
                return self._audio(payload, now_ns)
            case names.TRANSCRIPT_DELTA | names.TEXT_DELTA:
                self._text(payload, now_ns)
            case names.OUTPUT_ITEM_ADDED | names.RESPONSE_SPEAK:
                self._item(payload, now_ns)
            case names.RESPONSE_LISTEN:
                self._listen(payload, now_ns)
            case names.RESPONSE_DONE:
                self._done(payload, now_ns)
            case names.PLAYBACK_ACKNOWLEDGED:
                self._acknowledged(payload)
        return b""

    def _acknowledged(self, payload: Mapping[str, Any]) -> None:
        ack = payload.get("event")
        if not isinstance(ack, Mapping):
            return
        state = self.responses.get(str(ack.get("response_id")))
        if state is not None:
            state.note_history(ack)

    def _begin(self, response_id: str, now_ns: int, *, known: bool) -> ResponseState:
        state = ResponseState(response_id, known, now_ns, encoding=self._encoding, rate=self._rate)
        self.responses[response_id] = state
        if known:
            self._line.began(response_id)
        while len(self.responses) > RESPONSES_KEPT:
            ended = (name for name, other in self.responses.items() if other.status is not None)
            self.responses.pop(next(ended, next(iter(self.responses))))
        return state

    def _running(self, payload: Mapping[str, Any], now_ns: int) -> ResponseState:
        """The response an event names; one that was never seen to begin is taken as begun before we came."""
        response_id = _response_id(payload)
        return self.responses.get(response_id) or self._begin(response_id, now_ns, known=False)

    def _audio(self, payload: Mapping[str, Any], now_ns: int) -> bytes | None:
        state = self._running(payload, now_ns)
        if state.status is not None:
            self.stale_deltas += 1
            return None
        data = audio.decode_base64(payload["delta"])
        state.item_id = state.item_id or payload.get("item_id")
        state.add_audio(data, payload, now_ns)
        self._tell(state)
        return data

    def _text(self, payload: Mapping[str, Any], now_ns: int) -> None:
        state = self._running(payload, now_ns)
        if state.status is None:
            state.transcript += payload["delta"]
            if payload["delta"]:
                state.decision = SPEAK
                self._tell(state)

    def _item(self, payload: Mapping[str, Any], now_ns: int) -> None:
        """What an answer says is its item; a function call of it is another."""
        state = self._running(payload, now_ns)
        item = payload.get("item")
        if not isinstance(item, Mapping):
            item = {"id": payload.get("item_id")}
        if item.get("type", "message") == "message":
            state.item_id = item.get("id") or state.item_id

    def _listen(self, payload: Mapping[str, Any], now_ns: int) -> None:
        response = payload.get("response")
        nested = response.get("id") if isinstance(response, Mapping) else None
        response_id = payload.get("response_id") or nested
        if response_id is None:
            state = ResponseState("", True, now_ns, decision=LISTEN, status=names.STATUS_COMPLETED)
        else:
            state = self._running({"response_id": response_id}, now_ns)
            state.decision = state.decision or LISTEN
        if isinstance(response, Mapping) and isinstance(response.get("metadata"), Mapping):
            state.metadata = response["metadata"]
            state.reason = response["metadata"].get("reason")
        self._tell(state)

    def _done(self, payload: Mapping[str, Any], now_ns: int) -> None:
        state = self._running(payload, now_ns)
        if state.status is None:
            state.end(payload)
        self._line.announced(skipped_of_done(payload))
        self._line.ended(state.response_id, state.known)
        self._tell(state)

    def _tell(self, state: ResponseState) -> None:
        if state.response_id and state.response_id in self._told:
            return
        if state.response_id:
            self._told[state.response_id] = None
            while len(self._told) > RESPONSES_KEPT:
                self._told.popitem(last=False)
        self._announced.append(state)

    # -- playback -------------------------------------------------------------------------------------------------

    def find(self, response_id: str | None, item_id: str | None = None) -> ResponseState | None:
        """By id, by its item's id, else the latest; None when there is none."""
        if response_id is not None:
            return self.responses.get(response_id)
        if item_id is not None:
            return next((state for state in reversed(self.responses.values()) if state.item_id == item_id), None)
        return next(reversed(self.responses.values()), None)

    def reack(self) -> None:
        """A new attachment: acks may have been lost, so the last responses are acked afresh."""
        for state in list(self.responses.values())[-RESPONSES_REACKED:]:
            state.acked_ms = None
            state.ack_now = True

    def due_acks(self, now_ns: int) -> list[dict[str, Any]]:
        """The ``playback.ack`` events that are due now; they count as made."""
        acks: list[dict[str, Any]] = []
        for state in self.responses.values():
            due_ns = self._due_ns(state)
            if due_ns is None or due_ns > now_ns:
                continue
            ack = {"type": names.PLAYBACK_ACK, "response_id": state.response_id, "played_ms": state.played_ms}
            if state.committed_ms is not None:
                ack["committed_ms"] = state.committed_ms
            state.acked_ms, state.ack_at_ns, state.ack_now = state.played_ms, now_ns, False
            acks.append(ack)
        return acks

    def next_due_ns(self) -> int | None:
        """When the next ack is due, if any."""
        return min((due for state in self.responses.values() if (due := self._due_ns(state)) is not None), default=None)

    def _due_ns(self, state: ResponseState) -> int | None:
        if state.played_ms is None or (state.acked_ms is not None and state.played_ms <= state.acked_ms):
            return None
        all_heard = state.status is not None and state.played_ms >= state.received_ms
        if state.ack_at_ns is None or state.ack_now or all_heard:
            return 0
        return state.ack_at_ns + self._ack_ns


def _response_id(payload: Mapping[str, Any]) -> str:
    response_id = payload.get("response_id")
    if response_id is None and isinstance(payload.get("response"), Mapping):
        response_id = payload["response"].get("id")
    if not isinstance(response_id, str):
        raise ValueError("no response id")
    return response_id
