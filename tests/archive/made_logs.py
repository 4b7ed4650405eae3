"""Logs that are made by the machine itself from a list of verbs, batch by batch as an actor's are, with their bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs

from adapters.archive.layout import named_bodies
from adapters.wire.caused import encode_caused
from adapters.wire.duplex.projection import DuplexProjection
from core.ports.projection import Frame
from core.ports.store import Body, Row, StoredBatch
from core.session import commands as c
from core.session import events as e
from core.session.apply import apply
from core.session.config import SessionConfig
from core.session.digest import (
    CHAIN_START,
    NOTHING_CAUSED,
    body_digest,
    caused_digest,
    chain_link,
    first_chain_link,
)
from core.session.machine import step
from core.session.state import SessionState
from core.session.time_units import NS_PER_MS
from store.codec import stored_batch

NONE: Mapping[int, tuple[Row, ...]] = MappingProxyType({})
UNIT_BYTES, UNIT_SAMPLES = 9_600, 4_800
VERBS = ("say", "type", "commit", "unit", "ack", "done", "cut", "drop", "come", "take_over", "lose", "wait")


class LogMaker:
    """Folds as it goes. ``batches`` is the log; ``caused``: what each batch caused, encoded."""

    def __init__(self, verbs: Sequence[str]) -> None:
        self.batches: list[StoredBatch] = []
        self._made: dict[str, Body] = {}
        self.caused: list[bytes] = []
        self._state = SessionState()
        self._projection = DuplexProjection()
        self._now_ns = 1_700_000_000 * 10**9
        opened = e.SessionOpened("made", "duplex", self._projection.version, SessionConfig(turn_detection=None))
        self._store_writes("created", opened, e.OwnerChanged(1, "one"))
        self._do(c.GainRuntime())
        self._do(c.Attach("token"))
        for verb in verbs:
            self._now_ns += 20 * NS_PER_MS
            getattr(self, f"_{verb}")()

    @property
    def bodies(self) -> list[Body]:
        """What the log names; some of what was said was refused."""
        named = named_bodies(record.event for batch in self.batches for record in batch.records)
        return [self._made[digest] for digest in named]

    def _store_writes(self, batch_id: str, *events: e.Event) -> None:
        first, epoch = self._state.position + 1, self._state.epoch
        records = tuple(e.Record(place, epoch, self._now_ns, event) for place, event in enumerate(events, first))
        for record in records:
            apply(self._state, record)
            self._projection.fold(record, self._state)
        self._write(batch_id, records, b"")

    def _do(self, command: c.Command) -> None:
        frames: list[Frame] = []

        def project(record: e.Record, state: SessionState) -> None:
            frames.extend(self._projection.fold(record, state))

        before = self._state.position
        result = step(self._state, command, self._now_ns, c.Cursor(self._projection.number, {}), project)
        if result.records:
            self._write(f"{self._state.term}.{before}", result.records, encode_caused((result.effects, frames)))

    def _write(self, batch_id: str, records: tuple[e.Record, ...], caused: bytes) -> None:
        previous = self.batches[-1].chain if self.batches else CHAIN_START
        digest = caused_digest(caused) if caused else NOTHING_CAUSED
        self.batches.append(stored_batch(batch_id, self._state.term, records, previous, digest))
        self.caused.append(caused)

    def relinked(self, older: Sequence[bool] = (), rows: Mapping[int, tuple[Row, ...]] = NONE) -> list[StoredBatch]:
        """The log as it is if a server of an older version wrote the batches that ``older`` says, by rule 1, and if those in
        ``rows`` (place -> rows) were stored otherwise."""
        chain, made = CHAIN_START, list[StoredBatch]()
        for place, (batch, caused) in enumerate(zip(self.batches, self.caused, strict=True)):
            stored = rows.get(place, batch.rows)
            if place < len(older) and older[place]:
                chain = first_chain_link(chain, caused) if caused else chain
            else:
                digest = caused_digest(caused) if caused else NOTHING_CAUSED
                chain = chain_link(chain, batch.batch_id, batch.term, map(Row.line, stored), digest)
            made.append(attrs.evolve(batch, rows=stored, chain=chain))
        return made

    def _body(self) -> str:
        data = self._state.position.to_bytes(4, "big") * (UNIT_BYTES // 4)
        digest = body_digest(data)
        self._made[digest] = Body(digest, data)
        return digest

    def _say(self) -> None:
        self._do(c.AppendAudio(self._body(), UNIT_BYTES, UNIT_SAMPLES))

    def _type(self) -> None:
        self._do(c.CreateItem("user", "and now?", "{}"))
        self._do(c.CreateResponse())

    def _commit(self) -> None:
        self._do(c.CommitInput(True))
        self._do(c.TurnHeard(next(reversed(self._state.items), "none"), "what is it"))

    def _unit(self) -> None:
        active = self._state.active
        if active is not None:
            size, count = UNIT_BYTES, UNIT_SAMPLES
            output = c.ModelOutput(
                self._state.epoch,
                active.response_id,
                len(active.text),
                "speak",
                " word",
                self._body(),
                size,
                samples=count,
            )
            self._do(output)

    def _ack(self) -> None:
        self._do(c.AckPlayback(100))

    def _done(self) -> None:
        if self._state.active is not None:
            self._do(c.ModelDone(self._state.epoch, self._state.active.response_id))

    def _cut(self) -> None:
        self._do(c.CancelOutput("barge_in"))

    def _drop(self) -> None:
        self._do(c.Detach(self._state.attachment.generation, "connection_lost"))

    def _come(self) -> None:
        self._do(c.Attach(f"token {self._state.position}"))

    def _take_over(self) -> None:
        term = self._state.term + 1
        self._store_writes(f"term-{term}", e.OwnerChanged(term, f"server {term}"))

    def _lose(self) -> None:
        self._do(c.LoseRuntime("killed"))
        self._do(c.GainRuntime())

    def _wait(self) -> None:
        self._now_ns += 400 * NS_PER_MS
