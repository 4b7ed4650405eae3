"""What a step decided, on its way to the log: the batch that the store gets, and what its answer means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
import trio

from core.ports.projection import Frame
from core.ports.store import Batch, Body, StoreBusy, StoreError
from core.session import events as e
from core.session.digest import caused_digest
from core.session.machine import Step
from core.session.state import SessionState

if TYPE_CHECKING:
    from core.actors.ports import Ports
    from core.actors.session import Session

URGENT = (e.EpochBump, e.Attached, e.ResponseEnded, e.SpeechStopped, e.Commit)
"""Events that close the store's commit window at once."""

PATIENT = (e.Append, e.PlaybackAck)
"""Events whose durability nobody waits for: a batch of nothing else may share a later commit."""

EARLY_NS = 300_000_000
"""With so much sound left to play a client does not hear that the next unit shared a later commit too: a model that is
quicker than speech then costs hardly more commits than one session's microphone."""


def batch_of(
    state: SessionState,
    term: int,
    records: tuple[e.Record, ...],
    caused: bytes,
    bodies: Mapping[str, bytes],
    early: bool = False,
) -> Batch:
    """The batch of ``records``, the last of which ``state`` has folded; with those of ``bodies`` that they name. ``caused``:
    what they caused, encoded. ``early``: the client has sound enough to play for now."""
    expected = records[0].position - 1
    used = tuple(
        Body(digest, bodies[digest])
        for record in records
        if isinstance(record.event, e.Append | e.Output) and (digest := record.event.digest) in bodies
    )
    kinds = {type(record.event) for record in records}
    urgent, patient = not kinds.isdisjoint(URGENT), kinds.issubset((*PATIENT, e.Output) if early else PATIENT)
    batch_id, of_caused = f"{term}.{expected}", caused_digest(caused)
    return Batch(state.session_id, term, batch_id, expected, records, of_caused, used, urgent, patient)


@attrs.define
class Journal:
    """The one writer's pen."""

    session: Session
    ports: Ports
    unwritten_bytes: int = 0
    """Of clients' bodies whose batches are on their way."""

    def write(self, result: Step, frames: list[Frame], bodies: Mapping[str, bytes]) -> None:
        """Queue a step's records. ``frames``: what they added to the stream. A store that refuses is the session's end."""
        session, store = self.session, self.ports.store
        caused = self.ports.encode((result.effects, frames))
        early = session.outbox.played_out_ns > result.records[-1].at_ns + EARLY_NS
        batch = batch_of(session.state, session.term, result.records, caused, bodies, early)
        queued_at, position = trio.current_time(), result.records[-1].position
        came_in = any(isinstance(record.event, e.Append) for record in result.records)
        size_bytes = sum(len(body.data) for body in batch.bodies) if came_in else 0

        def done(error: StoreError | None) -> None:
            self.unwritten_bytes -= size_bytes
            self._written(position, error, queued_at)

        try:
            store.append_nowait(batch, done)
        except StoreBusy as error:
            session.fail(error)
        else:
            self.unwritten_bytes += size_bytes

    def _written(self, position: int, error: StoreError | None, queued_at: float) -> None:
        if error is not None:
            self.session.fail(error)
            return
        session = self.session
        session.outbox.durable = max(session.outbox.durable, position)
        session.lease.proved(queued_at)
        self.ports.watch.durable(session, trio.current_time() - queued_at)
        session.became_durable()
