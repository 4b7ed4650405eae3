"""A world around the pure machine: a clock, a delivery cursor, a client that hears, and every promise, checked after
each step.

The world knows of the session only what a world knows: which records there are, what it handed to the socket and when,
what the client said it heard. The promises are worked out from that, not with the machine's own functions.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import TypeVar

import attrs

from core.session import commands as c
from core.session import events as e
from core.session.apply import apply
from core.session.config import INPUT_KINDS, SessionConfig
from core.session.history import history
from core.session.machine import Step, step
from core.session.sides import ASSISTANT_MOVES, USER_MOVES, AssistantSide, UserSide, assistant_side, user_side
from core.session.state import (
    Response,
    SessionState,
)
from tests.core.session import promises
from tests.core.session.parts_promises import check_calls, check_parts
from tests.core.session.window_promises import check_window

MS = 1_000_000
UNIT_MS = 100
RATE = 24_000
START_NS = 1_700_000_000_000_000_000

CLIENT_VAD = SessionConfig(turn_detection=None)
"""The client says itself when a turn is over."""

SERVER_VAD = SessionConfig()

E = TypeVar("E")


@attrs.define
class Listener:
    """What the world knows of the client's ears, per response."""

    text: str = ""
    marks: list[tuple[int, int]] = attrs.field(factory=list)
    produced_ms: int = 0
    spoken: bool = True
    completed: bool = False
    played_out_ns: int = 0
    """When all that was handed over will have been played, behind what was handed over before."""
    handed_ms: int = 0
    claimed_ms: int | None = None
    """The most that it said it had heard (of what was sent by then). None: it never said."""
    limit_ms: int | None = None
    """It will never hear more than this: the lowest truncate."""

    def heard_chars_at_most(self, now_ns: int) -> int:
        """The text that can have been heard by now at the very most."""
        if not self.spoken:
            return len(self.text)
        if self.claimed_ms is not None:
            heard_ms = self.claimed_ms
        else:
            heard_ms = self.handed_ms - max(0, -((now_ns - self.played_out_ns) // MS))
        if self.limit_ms is not None:
            heard_ms = min(heard_ms, self.limit_ms)
        if heard_ms <= 0:
            return 0
        if heard_ms >= self.produced_ms and self.completed:
            return len(self.text)
        if not self.marks:
            return len(self.text) * min(heard_ms, self.produced_ms) // max(1, self.produced_ms)
        return max([chars for chars, end_ms in self.marks if end_ms <= heard_ms], default=0)


class World:
    """Drives one session. ``do`` is the one way in; the other verbs are spelled with it."""

    def __init__(self, config: SessionConfig = CLIENT_VAD, *, runtime: bool = True, attached: bool = True) -> None:
        self.state = SessionState()
        self.records: list[e.Record] = []
        self.replayed = SessionState()
        self.now_ns = START_NS
        self.number = 0
        self.place = 0
        self.played_out_ns = 0
        """When the client will have nothing more to play."""
        self.sent: dict[str, c.Sent] = {}
        self.ears: dict[str, Listener] = {}
        self.started: set[str] = set()
        self.ends: Counter[str] = Counter()
        self.cut_ends: dict[int, int] = {}
        self.spoke_ms: dict[str, int] = {}
        self.left_window: set[str] = set()
        self.excess_tokens = 0
        """What the runtime's last prompt had beyond the estimate of it."""
        self.fed: set[str] = set()
        """Digests that the runtime was fed."""
        self.heard: set[tuple[int, str]] = set()
        """Audio that this worker was fed: where each chunk begins, and its digest."""
        self.heard_ms = 0
        """Where the last of it ends."""
        self.said_ms = self.closed_ms = 0
        """How much came in, and how much of that is some turn's or older."""
        self.detecting = False
        """Its detector listens."""
        self.closed: set[str] = set()
        """Turns that were closed for this worker."""
        self.transcribed: set[str] = set()
        self.calls: dict[str, int] = {}
        """Function calls: item id -> position."""
        self.handed: set[int] = set()
        """Positions of calls that the client has."""
        self.unmade: set[str] = set()
        self.open_calls: set[str] = set()
        """Calls that a cut might unmake now."""
        self.checking = True
        self._write(e.SessionOpened("duplex-abc", "duplex", 1, config))
        self._write(e.OwnerChanged(1, "server-a"))
        if attached:
            self.do(c.Attach("hash-1"))
        if runtime:
            self.do(c.GainRuntime(8_000, INPUT_KINDS))

    # -- verbs -------------------------------------------------------------------------------------------------

    @property
    def clock_ns(self) -> int:
        """The session's own clock: it is never behind its log, whatever the server's does (core.actors.session)."""
        return max(self.now_ns, self.state.at_ns)

    def do(self, command: c.Command) -> Step:
        """One step of the machine, with everything checked that must hold."""
        before = promises.marks_of(self.state)
        self.open_calls = {i for r in self.state.responses.values() if not r.cut for i in r.calls}
        result = step(self.state, command, self.now_ns, self.cursor())
        self._note(command, result)
        if self.checking:
            self.check(before, command, result)
        return result

    def wait(self, ms: int) -> None:
        self.now_ns += ms * MS

    def say(self, ms: int = 200, *, event_id: str | None = None, is_speech: bool | None = None) -> Step:
        """Append ``ms`` of audio."""
        samples = RATE * ms // 1000
        return self.do(c.AppendAudio(f"in-{self.state.input.samples}", 2 * samples, samples, event_id, is_speech))

    def image(self, size_bytes: int = 1_000) -> c.ImageBody:
        return c.ImageBody(f"image-{self.state.position}-{size_bytes}", size_bytes, "image/png")

    def show(self, kind: str = "image", size_bytes: int = 1_000, text: str = "hey ") -> Step:
        """Something beside the audio of the turn that is being said."""
        if kind == "text":
            return self.do(c.AppendPart(kind, text=text))
        if kind == "image":
            return self.do(c.AppendAudio("", 0, 0, images=(self.image(size_bytes),)))
        return self.do(c.AppendPart(kind, f"{kind}-{self.state.position}", size_bytes, "audio/pcm"))

    def ask(self, ms: int = 200) -> Step:
        """A turn of the user's that wants an answer, closed by the client."""
        self.say(ms)
        return self.do(c.CommitInput(True))

    def make(self, units: int = 1, *, text: str = " word", audio_ms: int = UNIT_MS, marks: bool = True) -> None:
        """The model makes units of the active answer, one word in each."""
        for _ in range(units):
            active = self.active
            samples = RATE * audio_ms // 1000
            chars, end_ms = len(active.text) + len(text), active.produced_ms + audio_ms
            self.do(
                c.ModelOutput(
                    self.state.epoch,
                    active.response_id,
                    active.units,
                    "speak",
                    text,
                    f"out-{self.state.position}" if samples else "",
                    2 * samples,
                    RATE,
                    samples,
                    (e.TextMark(chars, end_ms),) if marks else (),
                )
            )

    def finish(self, status: str = "completed", reason: str = "", usage: tuple[int, int] | None = None) -> Step:
        """The model comes to the answer's end."""
        return self.do(c.ModelDone(self.state.epoch, self.active.response_id, status, reason, usage))

    def answered(self, units: int = 5, *, deliver: bool = True, heard: bool = True) -> Response:
        """A whole answer: made, and if asked so delivered and played out."""
        self.ask()
        response = self.active
        self.make(units)
        self.finish()
        if deliver:
            self.deliver()
        if heard:
            self.wait(units * UNIT_MS + 100)
        return response

    def call(self, name: str = "look_up", arguments: str = "{}", call_id: str = "") -> Step:
        """The model asks for a function call in the active answer."""
        return self.do(c.ModelCall(self.state.epoch, self.active.response_id, call_id, name, arguments))

    def deliver(self, frames: int = 1_000_000) -> int:
        """Hand the next frames (one a record) to the socket; returns how many milliseconds of audio went out."""
        out_ms = 0
        while frames > 0 and self.place < len(self.records):
            record = self.records[self.place]
            self.place += 1
            if isinstance(record.event, e.Output | e.ToolCalled) and self._is_dead(record):
                continue
            self.number = record.position
            self.handed.add(record.position)
            frames -= 1
            if isinstance(record.event, e.Output) and record.event.audio_ms:
                output = record.event
                ear = self.ears[output.response_id]
                self.played_out_ns = max(self.played_out_ns, self.clock_ns) + output.audio_ms * MS
                ear.played_out_ns = self.played_out_ns
                ear.handed_ms = output.start_ms + output.audio_ms
                self.sent[output.response_id] = c.Sent(ear.handed_ms, ear.played_out_ns)
                out_ms += output.audio_ms
        return out_ms

    def ack(self, played_ms: int, response_id: str | None = None, **options: object) -> Step:
        return self.do(c.AckPlayback(played_ms, response_id=response_id, **options))  # type: ignore[arg-type]

    def truncate(self, played_ms: int, response: Response | None = None) -> Step:
        response = response or self.last
        return self.do(c.AckPlayback(played_ms, item_id=response.item_id, truncate=True))

    def cancel(self, reason: str = "client_cancelled", **options: object) -> Step:
        return self.do(c.CancelOutput(reason, **options))  # type: ignore[arg-type]

    def move_server(self, resumed_from: int | None = None) -> None:
        """The server dies and another takes the session over, for a client that has ``resumed_from`` (a number)."""
        self._write(e.OwnerChanged(self.state.term + 1, "server-b"))
        number = self.number if resumed_from is None else resumed_from
        self.resume(number)
        self.do(c.GainRuntime(8_000, INPUT_KINDS))

    def resume(self, number: int) -> Step:
        """The client comes back and has everything up to ``number``."""
        covered: dict[str, int] = {}
        for record in self.records:
            if isinstance(record.event, e.Output) and record.event.audio_ms:
                covered.setdefault(record.event.response_id, 0)
                if record.position <= number:
                    covered[record.event.response_id] = record.event.start_ms + record.event.audio_ms
        for response_id, ms in covered.items():
            ear = self.ears[response_id]
            lost_ns = max(0, ear.handed_ms - ms) * MS
            ear.handed_ms = min(ear.handed_ms, ms)
            ear.played_out_ns -= lost_ns
            self.played_out_ns -= lost_ns
            if response_id in self.sent:
                self.sent[response_id] = c.Sent(ear.handed_ms, ear.played_out_ns)
            if ear.claimed_ms is not None:
                ear.claimed_ms = min(ear.claimed_ms, ear.handed_ms)
        result = self.do(c.Attach(f"hash-{self.state.position}", number, tuple(covered.items())))
        self.number, self.place = number, number
        self.handed = {position for position in self.handed if position <= number}
        return result

    # -- what to look at ---------------------------------------------------------------------------------------

    @property
    def active(self) -> Response:
        assert self.state.active is not None
        return self.state.active

    @property
    def last(self) -> Response:
        response = self.state.last_response
        assert response is not None
        return response

    def cursor(self) -> c.Cursor:
        waiting = self.records[self.place].position if self.place < len(self.records) else 0
        return c.Cursor(self.number, dict(self.sent), waiting)

    def events(self, kind: type[E]) -> list[E]:
        """All events of a kind, in order."""
        return [record.event for record in self.records if isinstance(record.event, kind)]

    def history(self) -> list[tuple[str, str | None]]:
        """The conversation as the next lane would be told it."""
        return [(turn.role, turn.text) for turn in history(self.state)]

    # -- inside ------------------------------------------------------------------------------------------------

    def _write(self, event: e.Event) -> None:
        """What the store writes by itself."""
        record = e.Record(self.state.position + 1, self.state.epoch, max(self.now_ns, self.state.at_ns), event)
        apply(self.state, record)
        self._take(record)

    def _is_dead(self, record: e.Record) -> bool:
        return any(epoch > record.epoch and record.position > cursor for epoch, cursor in self.cut_ends.items())

    def _note(self, command: c.Command, result: Step) -> None:
        for record in result.records:
            self._take(record)
        if isinstance(command, c.AckPlayback):
            for record in result.records:
                ack = record.event
                if isinstance(ack, e.PlaybackAck) and ack.source == "client":
                    self._hear(command, ack.response_id)

    def _hear(self, command: c.AckPlayback, response_id: str) -> None:
        ear = self.ears[response_id]
        wanted = command.played_ms if command.committed_ms is None or command.truncate else command.committed_ms
        heard = max(0, min(wanted, ear.handed_ms))
        ear.claimed_ms = max(ear.claimed_ms or 0, heard)
        if command.truncate:
            ear.limit_ms = heard if ear.limit_ms is None else min(ear.limit_ms, heard)

    def _take(self, record: e.Record) -> None:
        self.records.append(record)
        sides = user_side(self.replayed), assistant_side(self.replayed)
        apply(self.replayed, copy.copy(record))
        self._move(type(record.event), *sides)
        event = record.event
        match event:
            case e.ResponseStarted():
                self.started.add(event.response_id)
                self.ears[event.response_id] = Listener(spoken="audio" in event.modalities)
            case e.ResponseEnded():
                self._learn(event)
                self.ends[event.response_id] += 1
                self.ears[event.response_id].completed = event.status == "completed"
            case e.Output():
                ear = self.ears[event.response_id]
                ear.text += event.text
                ear.marks.extend((mark.chars, mark.audio_end_ms) for mark in event.marks)
                ear.produced_ms = event.start_ms + event.audio_ms
            case e.ToolCalled():
                self.calls[event.item_id] = record.position
            case e.EpochBump(disposition="cut"):
                self.cut_ends[event.epoch] = event.cursor
                self.played_out_ns = 0
            case e.Commit():
                self.spoke_ms[event.item_id] = event.end_ms - event.start_ms
                self.closed_ms = max(self.closed_ms, min(event.end_ms, self.said_ms))
            case e.Append(kind="audio"):
                self.said_ms = event.start_ms + event.audio_ms
            case e.InputTranscript():
                self.transcribed.add(event.item_id)
            case e.ItemCreated():
                self.left_window.discard(event.item_id)
            case e.WindowSlid():
                order = list(self.replayed.items)
                self.left_window.update(order[: order.index(event.upto) + 1])

    def _move(self, kind: type, user: UserSide, assistant: AssistantSide) -> None:
        """Both sides move only as their tables say."""
        now = user_side(self.replayed)
        assert now is user or now in USER_MOVES[user, kind], f"sides: {user} by {kind} to {now}"
        there = assistant_side(self.replayed)
        assert there is assistant or there in ASSISTANT_MOVES[assistant, kind], f"sides: {assistant}, {kind}, {there}"

    def _learn(self, ended: e.ResponseEnded) -> None:
        if ended.usage is not None and ended.usage[0] > 0:
            (told,) = (s.prompt_tokens for s in self.events(e.ResponseStarted) if s.response_id == ended.response_id)
            self.excess_tokens = max(0, ended.usage[0] - (told - self.excess_tokens))

    # -- the promises ------------------------------------------------------------------------------------------

    def check(self, before: tuple[int, ...], command: c.Command, result: Step) -> None:
        promises.check_first_fence(self, command, result)
        promises.check_replay_is_live(self)
        promises.check_told(self)
        promises.check_conservation(self)
        promises.check_heard_only(self, result)
        check_window(self, result)
        check_parts(self, command, result)
        check_calls(self, result)
        promises.check_one_end(self)
        promises.check_bounded(self)
        promises.check_fences_grow(before, self.state)
        promises.check_generation(before, result)
        promises.check_refusal(result)
