"""Replay of a session's log: the same fold, the same projection, the same effects, compared with the chained digest that was
stored with each batch when it was written. So a replay compares with what really happened, and not with itself.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from adapters.replay.bodies import BodyFault, check_bodies
from adapters.replay.links import EFFECTS_ONLY, Links
from core.actors.supervisor import MakeProjection
from core.ports.projection import Frame, Projection
from core.ports.store import LogUnreadable, SessionRow, Store, StoredBatch
from core.session import events as e
from core.session.apply import LogBroken, apply
from core.session.effects import Effect
from core.session.react import effects_of
from core.session.state import Phase, SessionState

READ_RECORDS = 2_000

FOLD_FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What the fold of records that were altered may end with: they can say anything."""


@attrs.frozen
class Mismatch:
    """The first batch that is not the recorded one, or that causes something else than was recorded."""

    position: int
    batch_id: str
    problem: str


@attrs.define
class Replay:
    """A replayed session: its last state, its whole log and stream, and whether it is what was recorded."""

    state: SessionState = attrs.field(factory=SessionState)
    records: list[e.Record] = attrs.field(factory=list)
    frames: list[Frame] = attrs.field(factory=list)
    batches: int = 0
    effects_only: int = 0
    """So many of them have a digest of an older version's, over effects and wire events and not over the records."""
    mismatch: Mismatch | None = None
    bodies: list[BodyFault] = attrs.field(factory=list)
    """Those that are missing, or are not what was stored."""
    erased: bool = False
    """The words and bodies were erased on purpose; what is left is what the erasure left."""

    @property
    def exact(self) -> bool:
        """State, effects and wire stream are those recorded, and the bodies are."""
        return self.mismatch is None and not self.bodies


class SessionUnreadable(Exception):
    """The log is damaged, or cannot be replayed by this version; the message says why. ``position``: of the first event
    that cannot be read; ``replay``: what came before it."""

    def __init__(self, problem: str, position: int, replay: Replay) -> None:
        super().__init__(problem)
        self.position = position
        self.replay = replay


@attrs.define
class Replayer:
    """Folds batches one after the other. ``encode`` must be the server's (it feeds the digest)."""

    make_projection: MakeProjection
    encode: Callable[[object], bytes]
    replay: Replay = attrs.field(factory=Replay)
    _projection: Projection | None = None
    _links: Links = attrs.field(factory=Links)
    _last: StoredBatch | None = None

    @property
    def projection(self) -> Projection | None:
        """The stream's fold so far; None before the first record."""
        return self._projection

    def fold(self, batch: StoredBatch) -> None:
        """The next batch. After a mismatch the fold goes on as far as it can; only the first one is told of. Raises
        SessionUnreadable."""
        replay, position = self.replay, batch.records[0].position
        self._note(position, batch.batch_id, self._links.check_records(batch))
        try:
            effects, frames = self._fold(batch)
        except FOLD_FAULTS as fault:
            if replay.mismatch is None:
                raise  # a fault of ours
            problem = f"{replay.mismatch.problem} (position {replay.mismatch.position}), and do not fold"
            raise SessionUnreadable(problem, position, replay) from fault
        replay.batches += 1
        replay.records.extend(batch.records)
        replay.frames.extend(frames)
        replay.erased = replay.erased or any(isinstance(record.event, e.Erased) for record in batch.records)
        caused = self._links.check_caused(batch, self.encode((tuple(effects), frames)))
        self._note(position, batch.batch_id, caused or self._wrong_term(batch))
        replay.effects_only = self._links.batches[EFFECTS_ONLY]
        self._last = batch

    def _fold(self, batch: StoredBatch) -> tuple[list[Effect], list[Frame]]:
        state = self.replay.state
        effects: list[Effect] = []
        frames: list[Frame] = []
        for record in batch.records:
            try:
                apply(state, record)
            except LogBroken as fault:
                raise SessionUnreadable(str(fault), record.position, self.replay) from fault
            frames.extend(self._project(record))
            effects.extend(effects_of(record, state))
        return effects, frames

    def end(self, row: SessionRow) -> None:
        """The log ends here; ``row`` is what the store says of the whole."""
        state, records, last = self.replay.state, self.replay.records, self._last
        if last is None:
            return
        closed = state.phase is Phase.CLOSED
        found = (state.dialect, records[0].at_ns, records[-1].at_ns, state.position, last.term, state.server, closed)
        listed = (row.dialect, row.created_ns, row.updated_ns, row.position, row.term, row.server, row.closed)
        if (row.session, *listed, row.chain) != (state.session_id, *found, last.chain):
            problem = "the session's own row (owner, term, times, end, digest) says something else than its log"
            self._note(state.position, last.batch_id, problem)

    def _project(self, record: e.Record) -> list[Frame]:
        state = self.replay.state
        if self._projection is None:
            self._projection = self.make_projection(state.dialect, state.projection_version)
        if self._projection is None:
            problem = f"no projection {state.dialect!r} version {state.projection_version} here"
            raise SessionUnreadable(problem, record.position, self.replay)
        return self._projection.fold(record, state)

    def _wrong_term(self, batch: StoredBatch) -> str | None:
        if self._last is not None and batch.term < self._last.term:
            return f"the term goes back from {self._last.term} to {batch.term}"
        if batch.term != self.replay.state.term:
            return f"it was written under term {batch.term}, and the owner's is {self.replay.state.term}"
        return None

    def _note(self, position: int, batch_id: str, problem: str | None) -> None:
        if problem is not None and self.replay.mismatch is None:
            self.replay.mismatch = Mismatch(position, batch_id, problem)


async def replay_session(
    store: Store,
    session: str,
    make_projection: MakeProjection,
    encode: Callable[[object], bytes],
    progress: Callable[[int, int], None] = lambda position, end: None,
) -> Replay:
    """Read and fold a whole session, and look at its bodies; ``progress`` is told of how many events how many are done.
    Raises SessionUnknown, SessionUnreadable, and StoreFailed for a store that cannot be read now."""
    row = await store.session(session)
    replayer = Replayer(make_projection, encode)
    replay = replayer.replay
    while True:
        await _read_on(store, session, replayer, row.position, progress)
        row = await store.session(session)  # of a session that goes on: what it says when nothing more was to be read
        if row.position <= replay.state.position:
            break
        if not await store.read(session, replay.state.position, 1):
            problem = f"the log ends at position {replay.state.position}, and went on to {row.position}"
            raise SessionUnreadable(problem, replay.state.position + 1, replay)
    replayer.end(row)
    replay.bodies = await check_bodies(store, session, replay.records, replay.erased)
    return replay


async def _read_on(
    store: Store, session: str, replayer: Replayer, end: int, progress: Callable[[int, int], None]
) -> None:
    """Fold what there is from here on; ``end`` is where the log ended lately."""
    replay, limit = replayer.replay, READ_RECORDS
    while True:
        try:
            batches = await store.read(session, replay.state.position, limit)
        except LogUnreadable as fault:
            if limit == 1:
                raise SessionUnreadable(str(fault), replay.state.position + 1, replay) from fault
            limit //= 2  # something on this page is damaged: what lies before it is still read
            continue
        limit = min(2 * limit, READ_RECORDS)
        if not batches:
            return
        for batch in batches:
            replayer.fold(batch)
        progress(replay.state.position, max(end, replay.state.position))
