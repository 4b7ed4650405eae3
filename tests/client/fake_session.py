"""A model of one server-side session, small enough to be trusted: it keeps the stream's promises by brute force.

``numbered`` is the projection: every wire event with its number, kept for ever. A cut marks the frames above the cursor
as dead and says so; a resume marks what the client will never get and says so. Input is taken once per event id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from adapters.wire.schema import audio, names

RATE = 24_000
DELTA_MS = 100


@dataclass
class Numbered:
    number: int
    payload: dict[str, Any]
    mortal: bool = False
    dead: bool = False


@dataclass
class FakeSession:
    """One session. ``frames`` are on their way to the attached client."""

    session_id: str = "sess_1"
    resumable: bool = True
    echo_input_position: bool = True
    """False: like a server that does not say how far the input is durable."""
    numbered: list[Numbered] = field(default_factory=list)
    cursor: int = 0
    generation: int = 0
    tokens: list[str] = field(default_factory=list)
    attached: bool = False
    frames: list[str] = field(default_factory=list)
    seen_ids: set[str] = field(default_factory=set)
    last_event_id: str | None = None
    input: list[bytes] = field(default_factory=list)
    commands: list[dict[str, Any]] = field(default_factory=list)
    played: dict[str, int] = field(default_factory=dict)
    event_acks: list[int] = field(default_factory=list)
    heartbeats: int = 0
    active: str | None = None
    answers: int = 0
    produced: dict[str, list[bytes]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    repeats: int = 0
    """Commands that came again and were ignored."""
    closed: bool = False
    refuse_resume: dict[str, Any] | None = None

    # -- the client's frames --------------------------------------------------------------------------------------

    def receive(self, text: str) -> None:
        event = json.loads(text)
        if not self.attached:
            self._handshake(event)
            return
        if len(self.tokens) > 1:
            del self.tokens[:-1]
        match event["type"]:
            case names.SESSION_EVENT_ACK:
                self.event_acks.append(event[names.NUMBER])
            case names.SESSION_HEARTBEAT:
                self.heartbeats += 1
                self._say({"type": names.SESSION_HEARTBEAT_ACK, "session_id": self.session_id})
            case names.PLAYBACK_ACK:
                self.played[event["response_id"]] = event["played_ms"]
                self.last_event_id = event["event_id"]
            case _:
                self._command(event)

    def _handshake(self, event: dict[str, Any]) -> None:
        if event["type"] == names.SESSION_RESUME:
            self._resume(event)
            return
        self._attach()
        self._say({"type": names.SESSION_CREATED, "session": self.session(), **self._credentials()})
        self.put({"type": names.SESSION_UPDATED, "session": self.session()})

    def _resume(self, event: dict[str, Any]) -> None:
        if self.refuse_resume is not None:
            self._say({"type": names.ERROR, "error": self.refuse_resume})
            return
        if event["resume_token"] not in self.tokens:
            self._say({"type": names.ERROR, "error": {"code": "invalid_resume_token", "message": "no such token"}})
            return
        last = event["last_received_server_event_seq"]
        for frame in self.numbered:
            if frame.number > last and frame.mortal and frame.payload.get("response_id") in self.cut:
                frame.dead = True
        self.cursor = last
        self._attach()
        skipped = [[frame.number, frame.number] for frame in self.numbered if frame.number > last and frame.dead]
        position = {"input_ms": self.input_ms(), "last_event_id": self.last_event_id}
        self._say(
            {
                "type": names.SESSION_RESUMED,
                "session_id": self.session_id,
                "session": self.session(),
                "skipped": skipped,
                **(position if self.echo_input_position else {}),
                **self._credentials(),
            }
        )
        self.pump()

    def _attach(self) -> None:
        self.attached = True
        self.generation += 1
        self.frames.clear()
        self.tokens.append(f"token-{self.generation}")

    def _credentials(self) -> dict[str, Any]:
        if not self.resumable:
            return {}
        return {"attachment_generation": self.generation, "resume_token": self.tokens[-1]}

    def session(self) -> dict[str, Any]:
        form = {"type": "audio/pcm", "rate": RATE}
        return {"id": self.session_id, "audio": {"input": {"format": form}, "output": {"format": form}}}

    def input_ms(self) -> int:
        return audio.duration_ms(sum(map(len, self.input)), audio.PCM16, RATE)

    def _command(self, event: dict[str, Any]) -> None:
        if event["event_id"] in self.seen_ids:
            self.repeats += 1
            return
        self.seen_ids.add(event["event_id"])
        self.last_event_id = event["event_id"]
        if event["type"] == names.AUDIO_APPEND:
            self.input.append(audio.decode_base64(event["audio"]))
            return
        self.commands.append(event)
        match event["type"]:
            case names.AUDIO_COMMIT:
                self.put({"type": names.AUDIO_COMMITTED, "item_id": f"item_{len(self.commands)}"})
            case names.BARGE_IN:
                self.cut_answer("barge_in")
            case names.RESPONSE_CANCEL:
                if self.active is None:
                    error = {
                        "code": "response_not_active",
                        "message": "nothing to cancel",
                        "event_id": event["event_id"],
                    }
                    self.put({"type": names.ERROR, "error": error})
                else:
                    self.cut_answer("client_cancelled")
            case names.SESSION_CLOSE:
                self.put({"type": names.SESSION_CLOSED, "session_id": self.session_id, "reason": event["reason"]})
                self.closed = True

    # -- the answer -----------------------------------------------------------------------------------------------

    def start_answer(self) -> str:
        self.answers += 1
        self.active = f"resp_{self.answers}"
        self.produced[self.active] = []
        self.put({"type": names.RESPONSE_CREATED, "response": {"id": self.active, "status": "in_progress"}})
        item = {"id": f"item_{self.active}"}
        self.put({"type": names.OUTPUT_ITEM_ADDED, "response_id": self.active, "item": item})
        return self.active

    def delta(self, pcm: bytes, text: str = "") -> None:
        assert self.active is not None
        chunks = self.produced[self.active]
        chunks.append(pcm)
        end_ms = audio.duration_ms(sum(map(len, chunks)), audio.PCM16, RATE)
        metadata = {"audio_duration_ms": end_ms, "audio_text_marks": []}
        named = {"response_id": self.active, "item_id": f"item_{self.active}"}
        event = {"type": names.AUDIO_DELTA, **named, "delta": audio.encode_base64(pcm), "metadata": metadata}
        self.put(event | {"format": "pcm16", "sample_rate_hz": RATE}, mortal=True)
        self.put({"type": names.TRANSCRIPT_DELTA, **named, "delta": text}, mortal=True)

    def end_answer(self, status: str = "completed", reason: str | None = None, skipped: Any = None) -> None:
        details = {"type": status, "reason": reason} if reason else None
        response = {"id": self.active, "status": status, "status_details": details, "output": []}
        metadata = {"skipped": skipped} if skipped else {}
        done = {"type": names.RESPONSE_DONE, "response_id": self.active, "response": {**response, "metadata": metadata}}
        self.active = None
        self.put(done)

    def cut_answer(self, reason: str) -> None:
        """Nothing above the cursor is sent of the answer; its end says so."""
        if self.active is None:
            return
        self.cut.add(self.active)
        mine = [frame for frame in self.numbered if frame.mortal and frame.payload.get("response_id") == self.active]
        for frame in mine:
            frame.dead = frame.dead or frame.number > self.cursor
        self.end_answer("cancelled", reason, [[frame.number, frame.number] for frame in mine if frame.dead])

    # -- the stream -----------------------------------------------------------------------------------------------

    def put(self, payload: dict[str, Any], *, mortal: bool = False) -> None:
        number = self.numbered[-1].number + 1 if self.numbered else 1
        stamped = {**payload, "event_id": f"event_{number}", names.NUMBER: number}
        self.numbered.append(Numbered(number, stamped, mortal))
        if not mortal:
            self.pump()

    def pump(self, count: int | None = None) -> None:
        """Hand frames above the cursor to the socket: up to ``count``, or all up to the newest that does not wait."""
        if not self.attached:
            return
        waiting = [frame for frame in self.numbered if frame.number > self.cursor]
        if count is None:
            live = [frame.number for frame in waiting if not frame.mortal]
            waiting = [frame for frame in waiting if live and frame.number <= live[-1]]
        for frame in waiting[:count]:
            self.cursor = frame.number
            if not frame.dead:
                self.frames.append(json.dumps(frame.payload))

    def _say(self, payload: dict[str, Any]) -> None:
        self.frames.append(json.dumps({**payload, "event_id": "event_x"}))

    def drop(self) -> None:
        """The socket is gone with what was on it; the session stays."""
        self.attached = False
        self.frames.clear()
