"""The client without its sockets: a machine that is fed frames and the time, and answers with frames and events.

Phases::

    idle -> handshake -> live -> gap -> handshake ...        (gap: the socket is gone, a resume is due)
    live -> closing -> ended                                 (closing: session.close was said, its answer is awaited)
    anything -> ended                                        (``failure`` says why, None after a close)

Rules, by name:

- one-stream: events come out in the order of their numbers, each once; every hole is announced or is a StreamGap.
- no-doubt-input: what the caller sent is sent until the server has it (see ``outbox``), in order, and never twice.
- no-stale-audio: audio of a response that has ended is dropped and counted; nobody gets to play it.
- token-rotation: the old token is kept until ``session.resumed`` is here, since that answer may be lost; then a frame
  is sent at once, since only that lets the old token die.

No method waits, and none reads a clock: ``now_ns`` is an argument, and so is the randomness of ids and back-offs.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from adapters.client.conversation import MS, Conversation
from adapters.client.credentials import ResumeCredentials
from adapters.client.errors import (
    ClientError,
    ClientMisuse,
    ConnectionLost,
    DuplexProtocolError,
    ResyncRequired,
    SendBufferFull,
    SessionEnded,
    SessionExpired,
    SessionReplaced,
    StreamGap,
)
from adapters.client.frames import DuplexEvent, decode_frame, output_format, read_error, read_format
from adapters.client.numbering import NumberLine
from adapters.client.options import CoreOptions, CoreStatistics
from adapters.client.outbox import Outbox, Outgoing
from adapters.client.responses import ResponseState
from adapters.wire.schema import audio, names
from adapters.wire.schema.errors import RETRYABLE_RESUME_CODES
from adapters.wire.schema.shapes import skipped_of_resumed

IDLE = "idle"
HANDSHAKE = "handshake"
LIVE = "live"
GAP = "gap"
CLOSING = "closing"
ENDED = "ended"

EVENT_ACK_ITEMS = 64
CONTROL_ITEMS_MAX = 1_024
POLICY_VIOLATION = 1_008


class ClientCore:
    """One client of one session. ``id_prefix`` must be new for every client: event ids are made from it."""

    def __init__(self, options: CoreOptions, id_prefix: str, credentials: ResumeCredentials | None = None) -> None:
        self.options = options
        self.phase = IDLE
        self.failure: ClientError | None = None
        self.close_reason: str | None = None
        self.session_id: str | None = credentials.session_id if credentials else None
        self.session_info: dict[str, Any] = {}
        self.generation = credentials.generation if credentials else 0
        self.attempt = 0
        self._token = credentials.resume_token if credentials else None
        self._line = NumberLine(credentials.last_number if credentials else None)
        self._conversation = Conversation(self._line, options.ack_ms)
        self._id_prefix = id_prefix
        self._ids = 0
        self._outbox = Outbox()
        self._control: deque[str] = deque()
        self.input_format: tuple[str, int] = read_format(options.config, "input") or (audio.PCM16, 24_000)
        self._input_samples = 0
        self._input_base_ms = 0
        self._opened_ns = self._heard_ns = self._heartbeat_ns = self._lost_ns = 0
        self._unacked_since_ns: int | None = None
        self._acked_number = self._line.last
        self._received_events = self._received_bytes = self._reconnects = self._lost = 0

    # -- the connection -------------------------------------------------------------------------------------------

    def connected(self, now_ns: int) -> None:
        """A socket is open: the handshake is the next frame out."""
        if self.phase not in (IDLE, GAP):
            raise ClientMisuse(f"a connection was opened in phase {self.phase}")
        self.phase = HANDSHAKE
        self._opened_ns = self._heard_ns = self._heartbeat_ns = now_ns
        self._control.clear()
        if self._token is None:
            self._control.append(self._encode({"type": names.SESSION_UPDATE, "session": dict(self.options.config)}))
            return
        self._control.append(
            self._encode(
                {
                    "type": names.SESSION_RESUME,
                    "session_id": self.session_id,
                    "resume_token": self._token,
                    "last_received_server_event_seq": self._line.last,
                }
            )
        )

    def disconnected(self, code: int | None, reason: str) -> None:
        """The socket is gone. Then ``phase`` is ``gap`` (ask ``retry_delay_ms``) or ``ended``."""
        if self.phase == ENDED:
            return
        if self.phase == CLOSING:
            self._end(None)
        elif not self.can_resume or code == POLICY_VIOLATION:
            self._end(ConnectionLost(reason or f"closed with code {code}", self.attempt))
        elif self.options.reconnect is None:
            self._end(ConnectionLost(reason or f"closed with code {code}"))
        else:
            self.phase = GAP
            self._control.clear()

    def retry_delay_ms(
        self, now_ns: int, chance: float, reason: str = "no connection", *, retry_after_ms: int = 0
    ) -> int | None:
        """The wait before the next attempt in a gap, counting it; None: the policy is used up and the client ended.
        ``retry_after_ms``: what the server asked for."""
        if self.phase != GAP or self.options.reconnect is None:
            return None
        if self.attempt == 0:
            self._lost_ns = now_ns
        self.attempt += 1
        lost_ms = (now_ns - self._lost_ns) // MS
        delay = self.options.reconnect.delay_ms(self.attempt, chance, lost_ms=lost_ms, retry_after_ms=retry_after_ms)
        if delay is None:
            self._end(ConnectionLost(reason, self.attempt - 1))
        return delay

    def abandon(self, failure: ClientError) -> None:
        """The shell cannot go on (the upgrade was refused for good, say)."""
        self._end(failure)

    @property
    def can_resume(self) -> bool:
        """The server gave out a token."""
        return self._token is not None and self.session_id is not None

    @property
    def resume_token(self) -> str | None:
        """A secret; rotates at every resume."""
        return self._token

    def credentials(self) -> ResumeCredentials:
        """For another client to go on from here. Raises ClientMisuse when the session cannot be resumed."""
        if self._token is None or self.session_id is None:
            raise ClientMisuse("this session cannot be resumed: the server gave out no token")
        return ResumeCredentials(self.session_id, self._token, self._line.last, self.generation)

    # -- frames out -----------------------------------------------------------------------------------------------

    def send(self, event: Mapping[str, Any]) -> str:
        """Queue a client event, now or for after the gap; its event id. Raises SendBufferFull, or what ended the
        client."""
        self._check_open()
        event_id = str(event.get("event_id") or self._next_id())
        stamped = {**event, "event_id": event_id}
        if event.get("type") in names.TRANSPORT_EVENTS:
            self._control.append(self._encode(stamped))
        else:
            self._outbox.put(Outgoing(event_id, self._encode(stamped)))
        return event_id

    def append_audio(self, data: bytes, hints: Mapping[str, Any] | None = None) -> str:
        """Queue input audio in the session's input format. Raises ValueError for a broken sample, SendBufferFull."""
        self._check_open()
        encoding, rate = self.input_format
        if len(data) % audio.SAMPLE_BYTES[encoding]:
            raise ValueError(f"{len(data)} bytes are not whole samples of {encoding}")
        event_id = self._next_id()
        event = {"type": names.AUDIO_APPEND, "event_id": event_id, "audio": audio.encode_base64(data), **(hints or {})}
        start_ms = self.input_ms
        samples = audio.sample_count(len(data), encoding)
        end_ms = self._input_base_ms + (self._input_samples + samples) * 1_000 // rate
        self._outbox.put(Outgoing(event_id, self._encode(event), start_ms, end_ms - start_ms))
        self._input_samples += samples
        return event_id

    @property
    def input_ms(self) -> int:
        """Input audio queued so far, on the session's input clock."""
        return self._input_base_ms + self._input_samples * 1_000 // self.input_format[1]

    def close(self, reason: str) -> None:
        """Say goodbye behind what waits; the server's ``session.closed`` ends the client. Where no connection stands it
        ends at once, and the server will end the session when its grace is over."""
        if self.phase == LIVE:
            event_id, event = self._next_id(), {"type": names.SESSION_CLOSE, "reason": reason}
            try:
                self._outbox.put(Outgoing(event_id, self._encode({**event, "event_id": event_id})))
            except SendBufferFull:
                self._push_control(event)
            self.phase = CLOSING
        elif self.phase != CLOSING:
            self._end(None)

    def next_frame(self) -> str | None:
        """The next text frame for the socket, None when there is nothing to say now."""
        if self._control and self.phase in (HANDSHAKE, LIVE, CLOSING):
            return self._control.popleft()
        return self._outbox.take() if self.phase in (LIVE, CLOSING) else None

    @property
    def waiting_bytes(self) -> int:
        """What has not been handed to a socket yet."""
        return self._outbox.waiting_bytes

    # -- time -----------------------------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> None:
        """Make the acks and heartbeats that are due."""
        if self.phase not in (LIVE, CLOSING):
            return
        event_ack_ns = self._event_ack_at_ns()
        if event_ack_ns is not None and event_ack_ns <= now_ns:
            self._ack_events()
        for ack in self._conversation.due_acks(now_ns):
            self._outbox.mark(self._push_control(ack))
        if self.options.heartbeat_ms is not None and now_ns - self._heartbeat_ns >= self.options.heartbeat_ms * MS:
            self._heartbeat_ns = now_ns
            self._push_control({"type": names.SESSION_HEARTBEAT})

    def next_tick_ns(self) -> int | None:
        """When ``tick`` has something to do next; None: not before something else happens."""
        if self.phase not in (LIVE, CLOSING):
            return None
        due = [due_ns for due_ns in (self._conversation.next_due_ns(), self._event_ack_at_ns()) if due_ns is not None]
        if self.options.heartbeat_ms is not None:
            due.append(self._heartbeat_ns + self.options.heartbeat_ms * MS)
        return min(due, default=None)

    def overdue_at_ns(self) -> int | None:
        """When the connection must be given up if nothing more is heard from the server."""
        if self.phase == HANDSHAKE:
            return self._opened_ns + self.options.handshake_ms * MS
        if self.phase in (LIVE, CLOSING) and self.options.heartbeat_ms is not None:
            return self._heard_ns + self.options.heartbeat_ms * 2 * MS
        return None

    # -- playback -------------------------------------------------------------------------------------------------

    def note_played(
        self,
        played_ms: float,
        response_id: str | None = None,
        *,
        item_id: str | None = None,
        committed_ms: float | None = None,
        truncate: bool = False,
        at_once: bool = False,
    ) -> None:
        """The listener has heard ``played_ms`` of a response (by id, by its item's id, else the latest). It is reported
        within ``ack_ms``, or now when ``at_once`` or ``truncate``. Unknown responses are the server's to judge."""
        self._check_open()
        if played_ms < 0:
            raise ValueError("played_ms must not be negative")
        state = self._conversation.find(response_id, item_id)
        if state is not None:
            state.note_played(played_ms, committed_ms)
            state.ack_now = state.ack_now or at_once
            if not truncate:
                return
        if state is None and response_id is None and item_id is None:
            raise ClientMisuse("there is no response yet whose playback could be reported")
        named: dict[str, Any] = {"response_id": response_id, "item_id": item_id, "committed_ms": committed_ms}
        if state is not None:
            named = {"response_id": state.response_id, "committed_ms": committed_ms}
        event = {"type": names.PLAYBACK_ACK, "played_ms": int(played_ms), "truncate": truncate}
        self.send(event | {name: value for name, value in named.items() if value is not None})

    # -- frames in ------------------------------------------------------------------------------------------------

    def receive(self, text: str, now_ns: int) -> list[DuplexEvent]:
        """Take one frame; the events to publish (none for a duplicate or stale audio). Look at ``failure`` after it."""
        if self.phase in (IDLE, GAP, ENDED):
            return []
        self._heard_ns = now_ns
        self._received_events += 1
        self._received_bytes += len(text)
        payload = decode_frame(text)
        if payload is None:
            self._end(
                DuplexProtocolError("invalid_event", "the server sent a frame that is no JSON object with a type")
            )
            return []
        number = payload.get(names.NUMBER)
        if type(number) is int:
            if not self._line.arrived(number):
                return []
            if self._unacked_since_ns is None:
                self._unacked_since_ns = now_ns
        event = DuplexEvent(payload["type"], payload, now_ns, number if type(number) is int else None, b"", len(text))
        try:
            published = self._dispatch(event)
        except (ValueError, KeyError, TypeError) as error:
            self._end(DuplexProtocolError("invalid_event", f"{event.type} has an unexpected shape: {error}"))
            return []
        self._check_gaps()
        return [published] if published is not None else []

    def take_announced(self) -> list[ResponseState]:
        """Responses whose decision became known since the last call."""
        return self._conversation.take_announced()

    def statistics(self) -> CoreStatistics:
        """Now."""
        return CoreStatistics(
            received_events=self._received_events,
            received_bytes=self._received_bytes,
            duplicate_events=self._line.duplicates,
            skipped_events=self._line.skipped,
            lost_events=self._lost,
            stale_audio_deltas=self._conversation.stale_deltas,
            reconnects=self._reconnects,
            outbox=self._outbox.statistics(),
        )

    @property
    def responses(self) -> Mapping[str, ResponseState]:
        """The responses that are remembered, oldest first."""
        return self._conversation.responses

    @property
    def last_number(self) -> int:
        """The last number taken."""
        return self._line.last

    # -- handlers -------------------------------------------------------------------------------------------------

    def _dispatch(self, event: DuplexEvent) -> DuplexEvent | None:
        handler = _HANDLERS.get(event.type)
        if handler is not None:
            handler(self, event)
        data = self._conversation.apply(event.type, event.payload, event.at_ns)
        if data is None:
            return None
        return replace(event, audio=data) if data else event

    def _created(self, event: DuplexEvent) -> None:
        if self.phase != HANDSHAKE:
            return
        session = event.payload.get("session")
        session_id = session.get("id") if isinstance(session, Mapping) else event.payload.get("session_id")
        self.session_id = str(session_id) if session_id else None
        self._attach(event)

    def _resumed(self, event: DuplexEvent) -> None:
        if self.phase != HANDSHAKE:
            return
        payload = event.payload
        self._line.announced(skipped_of_resumed(payload))
        input_ms = payload.get("input_ms")
        self._outbox.resume(input_ms if type(input_ms) is int else None, payload.get("last_event_id"))
        if self._input_samples == 0 and type(input_ms) is int:
            self._input_base_ms = input_ms
        self._attach(event)
        self._reconnects += 1
        self._conversation.reack()
        self._ack_events()

    def _attach(self, event: DuplexEvent) -> None:
        payload = event.payload
        self._read_session(event)
        self._token = payload.get("resume_token")
        self.generation = int(payload.get("attachment_generation") or 0)
        self.phase = LIVE
        self.attempt = 0

    def _read_session(self, event: DuplexEvent) -> None:
        session = event.payload.get("session")
        if isinstance(session, Mapping):
            self.session_info = dict(session)
            self._conversation.set_output_format(*output_format(session))
            input_format = read_format(session, "input")
            if input_format is not None and input_format != self.input_format:
                self._input_base_ms, self._input_samples = self.input_ms, 0
                self.input_format = input_format

    def _replaced(self, event: DuplexEvent) -> None:
        self._token = None
        self._end(SessionReplaced(int(event.payload.get("attachment_generation") or self.generation)))

    def _resync(self, event: DuplexEvent) -> None:
        self._token = None
        if self.phase == HANDSHAKE:
            self._end(ResyncRequired(str(event.payload.get("reason") or "unknown")))

    def _closed(self, event: DuplexEvent) -> None:
        self.close_reason = str(event.payload.get("reason") or "closed")
        self._end(None if self.phase == CLOSING else SessionEnded(self.close_reason))

    def _expired(self, event: DuplexEvent) -> None:
        self.close_reason = str(event.payload.get("reason") or "expired")
        self._end(SessionExpired(self.close_reason))

    def _heartbeat_acked(self, event: DuplexEvent) -> None:
        last = event.payload.get("last_event_id")
        if isinstance(last, str):
            self._outbox.confirm(last)

    def _error(self, event: DuplexEvent) -> None:
        refusal = read_error(event.payload)
        if event.number is not None and refusal.event_id is not None:
            self._outbox.confirm(refusal.event_id)
        if self.phase != HANDSHAKE:
            return
        if self.attempt > 0 and (refusal.retryable or refusal.code in RETRYABLE_RESUME_CODES):
            self.phase = GAP
            self._control.clear()
        else:
            self._end(refusal)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _check_gaps(self) -> None:
        lost = self._line.take_lost()
        if not lost:
            return
        self._lost += sum(last - first + 1 for first, last in lost)
        if self.options.strict_stream:
            self._end(StreamGap(lost))

    def _event_ack_at_ns(self) -> int | None:
        if self._unacked_since_ns is None:
            return None
        if self._line.last - self._acked_number >= EVENT_ACK_ITEMS:
            return 0
        return self._unacked_since_ns + self.options.ack_ms * MS

    def _ack_events(self) -> None:
        self._unacked_since_ns = None
        self._acked_number = self._line.last
        self._push_control({"type": names.SESSION_EVENT_ACK, names.NUMBER: self._line.last})

    def _push_control(self, event: Mapping[str, Any]) -> str:
        event_id = str(event.get("event_id") or self._next_id())
        if len(self._control) >= CONTROL_ITEMS_MAX:
            self._control.popleft()
        self._control.append(self._encode({**event, "event_id": event_id}))
        return event_id

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.phase in (CLOSING, ENDED):
            raise SessionEnded(self.close_reason or "closed by this client")
        if self.phase == IDLE:
            raise ClientMisuse("the client is not connected yet: enter it with `async with`")

    def _end(self, failure: ClientError | None) -> None:
        if self.phase != ENDED:
            self.phase = ENDED
            self.failure = failure
            self._control.clear()

    def _next_id(self) -> str:
        self._ids += 1
        return f"{self._id_prefix}-{self._ids}"

    def _encode(self, event: Mapping[str, Any]) -> str:
        stamped = event if "event_id" in event else {**event, "event_id": self._next_id()}
        return json.dumps(stamped, separators=(",", ":"))


_HANDLERS: dict[str, Callable[[ClientCore, DuplexEvent], None]] = {
    names.ERROR: ClientCore._error,
    names.SESSION_CLOSED: ClientCore._closed,
    names.SESSION_CREATED: ClientCore._created,
    names.SESSION_EXPIRED: ClientCore._expired,
    names.SESSION_HEARTBEAT_ACK: ClientCore._heartbeat_acked,
    names.SESSION_REPLACED: ClientCore._replaced,
    names.SESSION_RESUMED: ClientCore._resumed,
    names.SESSION_RESYNC_REQUIRED: ClientCore._resync,
    names.SESSION_UPDATED: ClientCore._read_session,
}
