"""A session of one hour, made by the machine itself: a person who is always heard, an answer every twenty seconds, playback
reported once a second. For benchmarks that need a long log and not a long time."""

from __future__ import annotations

import time
from collections.abc import Iterator

from adapters.wire.caused import encode_caused
from adapters.wire.duplex.projection import DuplexProjection
from core.ports.projection import Frame
from core.ports.store import StoredBatch
from core.session import commands as c
from core.session import events as e
from core.session.apply import apply
from core.session.config import SessionConfig
from core.session.digest import CHAIN_START, NOTHING_CAUSED, body_digest, caused_digest
from core.session.machine import step
from core.session.state import SessionState
from core.session.time_units import NS_PER_MS
from store.codec import stored_batch

TURN_MS = 20_000
CHUNK_MS = 200
UNIT_MS = 200
ANSWER_MS = 8_000


class HourMaker:
    """Folds as it goes; ``batches`` is the log."""

    def __init__(self, session: str, token_hash: str, minutes: int = 60) -> None:
        self.state = SessionState()
        self.projection = DuplexProjection()
        self.batches: list[StoredBatch] = []
        self._sent: dict[str, c.Sent] = {}
        self._now_ns = time.time_ns() - minutes * 60_000 * NS_PER_MS
        opened = e.SessionOpened(
            session, self.projection.dialect, self.projection.version, SessionConfig(turn_detection=None)
        )
        self._write_first(opened, e.OwnerChanged(1, "bench"))
        self._do(c.GainRuntime())
        self._do(c.Attach(token_hash))
        for _ in range(minutes * 60_000 // TURN_MS):
            self._turn()
        self._do(c.Detach(1, "connection_lost"))

    def _write_first(self, *events: e.Event) -> None:
        records = tuple(e.Record(place, 0, self._now_ns, event) for place, event in enumerate(events, start=1))
        for record in records:
            apply(self.state, record)
            self.projection.fold(record, self.state)
        self._write("created", records, NOTHING_CAUSED)

    def _write(self, batch_id: str, records: tuple[e.Record, ...], caused: bytes) -> None:
        previous = self.batches[-1].chain if self.batches else CHAIN_START
        self.batches.append(stored_batch(batch_id, 1, records, previous, caused))

    def _do(self, command: c.Command) -> None:
        frames: list[Frame] = []

        def project(record: e.Record, state: SessionState) -> None:
            frames.extend(self.projection.fold(record, state))

        before = self.state.position
        result = step(self.state, command, self._now_ns, c.Cursor(self.projection.number, self._sent), project)
        if result.records:
            self._write(f"1.{before}", result.records, caused_digest(encode_caused((result.effects, frames))))

    def _turn(self) -> None:
        answer = self._speak_and_answer()
        for at_ms in range(0, TURN_MS, CHUNK_MS):
            digest = body_digest(self._now_ns.to_bytes(8, "big"))
            self._do(c.AppendAudio(digest, 9_600, 4_800, is_speech=at_ms < 2_000))
            if at_ms == 2_000:
                self._do(c.CommitInput(True))
            if at_ms > 2_000:
                next(answer, None)
            self._now_ns += CHUNK_MS * NS_PER_MS

    def _speak_and_answer(self) -> Iterator[None]:
        yield
        item = next(reversed(self.state.items))
        self._do(c.TurnHeard(item, "what is it that you would like to tell me about today"))
        active = self.state.active
        assert active is not None
        for unit in range(ANSWER_MS // UNIT_MS):
            digest = body_digest(f"{self._now_ns} {unit}".encode())
            output = c.ModelOutput(
                self.state.epoch, active.response_id, unit, "speak", " some words", digest, 9_600, samples=4_800
            )
            self._do(output)
            self._sent = {active.response_id: c.Sent((unit + 1) * UNIT_MS, self._now_ns)}
            if unit % 5 == 4:
                self._do(c.AckPlayback(unit * UNIT_MS, response_id=active.response_id))
            yield
        self._do(c.ModelDone(self.state.epoch, active.response_id))
