"""A step's records as the batch that the store gets."""

from __future__ import annotations

from collections.abc import Mapping

from core.ports.store import Batch, Body
from core.session import events as e
from core.session.state import SessionState

URGENT = (e.EpochBump, e.Attached, e.ResponseEnded, e.SpeechStopped, e.Commit)
"""Events that close the store's commit window at once."""

PATIENT = (e.Append, e.PlaybackAck)
"""Events whose durability nobody waits for: a batch of nothing else may share a later commit."""


def batch_of(
    state: SessionState, term: int, records: tuple[e.Record, ...], chain: bytes, bodies: Mapping[str, bytes]
) -> Batch:
    """The batch of ``records``, the last of which ``state`` has folded; with those of ``bodies`` that they name."""
    expected = records[0].position - 1
    used = tuple(
        Body(digest, bodies[digest])
        for record in records
        if isinstance(record.event, e.Append | e.Output) and (digest := record.event.digest) in bodies
    )
    urgent = any(isinstance(record.event, URGENT) for record in records)
    patient = all(isinstance(record.event, PATIENT) for record in records)
    return Batch(state.session_id, term, f"{term}.{expected}", expected, records, chain, used, urgent, patient)
