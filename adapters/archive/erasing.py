"""Erasure: a session without its bodies and texts, whose log still folds.

The session is ended first if it still goes on: taking its term fences the server that has it, and a closed session is
given to nobody. Its client comes back at once, to any server, and whoever folds a long log before it ends the session is
too late; so the log is folded before the term is taken, and what came since after it. Then the log is rewritten in one
transaction, with ``erased`` as its last event, and the bodies go. The chained digests are computed anew, over what is left: a
later replay is compared with those, and so still finds damage. Whether the log replayed exactly before is part of the answer,
for it cannot be found out any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs
import trio

from adapters.archive.masking import masked
from adapters.archive.writing import Progress, silent
from adapters.replay.links import caused_of
from adapters.replay.replaying import Replayer
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from core.ports.keeping import Keeper
from core.ports.projection import Frame
from core.ports.store import Batch, Owned, PositionConflict, StoredBatch, StoreError, StoreFailed, TermRefused
from core.session import commands as c
from core.session import events as e
from core.session.apply import apply
from core.session.digest import CHAIN_START, caused_digest
from core.session.effects import Effect
from core.session.machine import stamp, step
from core.session.react import effects_of
from core.session.state import Phase, SessionState
from store.codec import stored_batch

SERVER = "erasure"
REASON = "erased"
READ_RECORDS = 2_000
TRIES = 5
"""A client that comes back in the very moment may be quicker once; who comes after the end finds it."""


@attrs.frozen
class Erasure:
    """``was_exact``: the log replayed as recorded before it was erased. ``already``: there was nothing left to erase."""

    session: str
    events: int
    was_exact: bool
    already: bool = False


async def erase_session(store: Keeper, session: str, now_ns: Callable[[], int], progress: Progress = silent) -> Erasure:
    """Erase. Raises SessionUnknown, SessionUnreadable, StoreError; after an error not all was erased, and asking again
    is safe."""
    for _ in range(TRIES):
        log = _Log(store, session)
        await log.read_on(progress)
        with suppress(TermRefused, PositionConflict):  # a server has taken it for its client meanwhile
            return await _end_and_rewrite(log, now_ns, progress)
    raise StoreFailed(f"{session} is resumed again and again: try once more, or end it first")


@attrs.define
class _Log:
    """A log as far as it was read."""

    store: Keeper
    session: str
    batches: list[StoredBatch] = attrs.field(factory=list)
    replayer: Replayer = attrs.field(factory=lambda: Replayer(make_projection, encode_caused))

    @property
    def state(self) -> SessionState:
        return self.replayer.replay.state

    async def read_on(self, progress: Progress = silent) -> None:
        position, total = self.state.position, (await self.store.session(self.session)).position
        while found := await self.store.read(self.session, position, READ_RECORDS):
            for batch in found:
                self.replayer.fold(batch)
            self.batches.extend(found)
            position = self.state.position
            progress("reading", position, max(position, total))


async def _end_and_rewrite(log: _Log, now_ns: Callable[[], int], progress: Progress) -> Erasure:
    """Raises TermRefused, PositionConflict: somebody else wrote to the log."""
    store, session = log.store, log.session
    row = await store.session(session)
    is_over = Owned(session, row.term, row.position)
    owned = is_over if row.closed else await store.take_term(session, SERVER, now_ns())
    await log.read_on()
    if log.state.phase is not Phase.CLOSED:
        closing = _closing_batch(log.replayer, owned, now_ns())
        await _append(store, closing)
        previous = log.batches[-1].chain
        log.batches.append(stored_batch(closing.batch_id, closing.term, closing.records, previous, closing.caused))
        owned = attrs.evolve(owned, position=closing.records[-1].position)
    already = any(isinstance(record.event, e.Erased) for record in log.replayer.replay.records)
    erased = rewritten(log.batches, None if already else now_ns())
    progress("rewriting", 0, 1)
    await store.put_log(erased, replacing=owned)
    await store.compact()
    progress("rewriting", 1, 1)
    count = sum(len(batch.records) for batch in erased)
    return Erasure(session, count, log.replayer.replay.exact, already)


def _closing_batch(replayer: Replayer, owned: Owned, now_ns: int) -> Batch:
    state, projection = replayer.replay.state, replayer.projection
    assert projection is not None
    frames: list[Frame] = []

    def project(record: e.Record, after: SessionState) -> None:
        frames.extend(projection.fold(record, after))

    expected = state.position
    result = step(state, c.Close(REASON), now_ns, c.Cursor(projection.number, {}), project)
    caused = caused_digest(encode_caused((result.effects, frames)))
    batch_id = f"{owned.term}.{expected}"
    return Batch(state.session_id, owned.term, batch_id, expected, result.records, caused, urgent=True)


async def _append(store: Keeper, batch: Batch) -> None:
    answered = trio.Event()
    answers: list[StoreError | None] = []

    def done(error: StoreError | None) -> None:
        answers.append(error)
        answered.set()

    store.append_nowait(batch, done)
    await answered.wait()
    if answers[0] is not None:
        raise answers[0]


def rewritten(batches: Sequence[StoredBatch], erased_ns: int | None) -> list[StoredBatch]:
    """The log without words, its chain computed anew; ``erased`` is added at ``erased_ns`` (None: it is there). Raises
    LogBroken for a log that does not fold."""
    state, chain = SessionState(), CHAIN_START
    projection = None
    made: list[StoredBatch] = []
    for batch in batches:
        records = tuple(attrs.evolve(record, event=masked(record.event)) for record in batch.records)
        effects: list[Effect] = []
        frames: list[Frame] = []
        for record in records:
            apply(state, record)
            projection = projection or make_projection(state.dialect, state.projection_version)
            assert projection is not None
            frames.extend(projection.fold(record, state))
            effects.extend(effects_of(record, state))
        caused = caused_of(batch, encode_caused((tuple(effects), frames)))
        made.append(stored_batch(batch.batch_id, batch.term, records, chain, caused))
        chain = made[-1].chain
    if erased_ns is not None:
        last = made[-1]
        record = stamp(state, e.Erased(), max(erased_ns, state.at_ns))
        apply(state, record)
        assert projection is not None
        effects, frames = list(effects_of(record, state)), projection.fold(record, state)
        caused = caused_digest(encode_caused((tuple(effects), frames)))
        made.append(stored_batch(f"{last.term}.{record.position - 1}", last.term, (record,), chain, caused))
    return made
