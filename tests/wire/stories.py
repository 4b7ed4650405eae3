"""A session without sockets, clocks or models: the real machine, a projection, and the real outbox as its client."""

from __future__ import annotations

from typing import Any

from core.actors.outbox import Entry, Outbox
from core.ports.projection import Frame, Projection
from core.session import commands as c
from core.session import events as e
from core.session.apply import apply
from core.session.config import SessionConfig
from core.session.effects import FenceOutput
from core.session.machine import Step, step
from core.session.state import SessionState

MS = 1_000_000
RATE = 24_000


class Story:
    """One session and the client that reads its stream. Time moves only by ``wait``."""

    def __init__(self, projection: Projection, config: SessionConfig | None = None) -> None:
        self.projection = projection
        self.state = SessionState()
        self.outbox = Outbox(60_000, 8 * 1024 * 1024)
        self.outbox.attach(1, None, (), 0)
        self.now_ns = 1_000_000_000_000
        self.frames: list[Frame] = []
        self.records: list[e.Record] = []
        self.seen: list[dict[str, Any]] = []
        self.handed: set[int] = set()
        self.skipped: set[int] = set()
        """What a resumed client was told that it will not get."""
        self._segment = 0
        for event in (
            e.SessionOpened(
                "duplex-0123456789abcdef", projection.dialect, projection.version, config or SessionConfig()
            ),
            e.OwnerChanged(1, "here"),
        ):
            record = e.Record(self.state.position + 1, 1, self.now_ns, event)
            apply(self.state, record)
            self._project(record, self.state)
        self.do(c.Attach("token"))
        self.do(c.GainRuntime())

    def _project(self, record: e.Record, state: SessionState) -> None:
        self.records.append(record)
        self.frames.extend(self.projection.fold(record, state))

    def do(self, command: c.Command) -> Step:
        """Let the machine decide, the stream grow, and a cut take effect. Nothing is delivered."""
        before = len(self.frames)
        result = step(self.state, command, self.now_ns, self.outbox.cursor(), self._project)
        for effect in result.effects:
            if isinstance(effect, FenceOutput):
                self.outbox.cut(effect.epoch, effect.cursor, 0)
        self.outbox.extend(self.frames[before:], self.now_ns, {})
        self.outbox.durable = self.state.position
        return result

    def deliver(self, count: int = 1_000_000) -> list[dict[str, Any]]:
        """Hand over at most ``count`` frames; what the client got."""
        got = []
        while count and (item := self.outbox.peek(self.outbox.generation)) is not None:
            assert isinstance(item, Entry)
            self.outbox.hand_over(item, self.now_ns)
            self.handed.add(item.frame.number)
            got.append(dict(item.frame.payload))
            count -= 1
        self.seen.extend(got)
        return got

    def resume(self, lost: int) -> None:
        """The line tears with the last ``lost`` frames on their way, and the client comes back for them."""
        self.seen = self.seen[: max(0, len(self.seen) - lost)]
        number = number_of(self.seen[-1]) if self.seen else 0
        self.outbox.rewind(number)
        self.do(c.Attach("token", number, self.outbox.resent(number, self.now_ns)))
        for first, last in self.outbox.skipped(number):
            self.skipped.update(range(first, last + 1))
        self.outbox.attach(self.state.attachment.generation, number, (), 0)

    def wait(self, ms: int) -> None:
        self.now_ns += ms * MS

    # -- verbs ----------------------------------------------------------------------------------------------------

    def append(self, ms: int = 200) -> Step:
        rate = self.state.config.input_format.rate
        return self.do(c.AppendAudio("in", ms * rate // 500, ms * rate // 1000))

    def speech_begins(self) -> Step:
        self.append()
        self._segment += 1
        return self.do(c.SpeechHeard(self._segment, self.state.input.now_ms))

    def speech_ends(self, text: str | None = "what is it", ms: int = 600) -> Step:
        start_ms = self.state.input.now_ms
        self.append(ms)
        return self.do(c.SpeechFinished(self._segment, start_ms, start_ms + ms, text))

    def ask(self, text: str = "what is it") -> str:
        """The user speaks and is answered: the response's id."""
        self.speech_begins()
        self.speech_ends(text)
        assert self.state.active is not None
        return self.state.active.response_id

    def answer(self, text: str, ms: int = 200) -> Step:
        """The model says ``text`` in ``ms`` of audio (0: no audio), with a mark at its end."""
        active = self.state.active
        assert active is not None
        samples = ms * RATE // 1000
        chars, end_ms = len(active.text) + len(text), active.produced_ms + ms
        marks = (e.TextMark(chars, end_ms),) if ms else ()
        return self.do(
            c.ModelOutput(
                self.state.epoch, active.response_id, 0, "speak", text, "out", samples * 2, RATE, samples, marks
            )
        )

    def done(self, status: str = "completed", reason: str = "") -> Step:
        active = self.state.active
        assert active is not None
        return self.do(c.ModelDone(self.state.epoch, active.response_id, status, reason, (5, 7)))


def number_of(payload: dict[str, Any]) -> int:
    return int(payload["event_id"].rpartition("_")[2])


def types(payloads: list[dict[str, Any]]) -> list[str]:
    return [payload["type"] for payload in payloads]


def only(payloads: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = [payload for payload in payloads if payload["type"] == kind]
    assert len(found) == 1, (kind, types(payloads))
    return found[0]
