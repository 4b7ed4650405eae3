"""Replay of a session's log: the same fold, the same projection, the same effects, compared with the chained digest that
the live server stored with each batch. So a replay compares with what really happened, and not with itself.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from core.actors.supervisor import MakeProjection
from core.ports.projection import Frame, Projection
from core.ports.store import LogUnreadable, Store, StoredBatch
from core.session import events as e
from core.session.apply import LogBroken, apply
from core.session.digest import CHAIN_START, chain_digest
from core.session.effects import Effect
from core.session.react import effects_of
from core.session.state import SessionState

READ_RECORDS = 2_000

STORE_WRITES = (e.SessionOpened, e.OwnerChanged)
"""Written by the store itself when a term is taken: they cause nothing and leave the chain as it is."""


@attrs.frozen
class Mismatch:
    """The first batch whose effects or wire events differ from the recorded ones."""

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
    mismatch: Mismatch | None = None

    @property
    def exact(self) -> bool:
        """State, effects and wire stream are those recorded."""
        return self.mismatch is None


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
    _chain: bytes = CHAIN_START

    @property
    def projection(self) -> Projection | None:
        """The stream's fold so far; None before the first record."""
        return self._projection

    def fold(self, batch: StoredBatch) -> None:
        """The next batch. After a mismatch the fold goes on, but nothing is compared any more."""
        replay = self.replay
        effects: list[Effect] = []
        frames: list[Frame] = []
        for record in batch.records:
            try:
                apply(replay.state, record)
            except LogBroken as fault:
                raise SessionUnreadable(str(fault), record.position, replay) from fault
            frames.extend(self._project(record))
            effects.extend(effects_of(record, replay.state))
        replay.batches += 1
        replay.records.extend(batch.records)
        replay.frames.extend(frames)
        if replay.mismatch is None:
            replay.mismatch = self._compare(batch, effects, frames)

    def _project(self, record: e.Record) -> list[Frame]:
        state = self.replay.state
        if self._projection is None:
            self._projection = self.make_projection(state.dialect, state.projection_version)
        if self._projection is None:
            problem = f"no projection {state.dialect!r} version {state.projection_version} here"
            raise SessionUnreadable(problem, record.position, self.replay)
        return self._projection.fold(record, state)

    def _compare(self, batch: StoredBatch, effects: list[Effect], frames: list[Frame]) -> Mismatch | None:
        if isinstance(batch.records[0].event, STORE_WRITES):
            expected = self._chain
        else:
            expected = chain_digest(self._chain, self.encode((tuple(effects), frames)))
        self._chain = batch.chain
        if batch.chain == expected:
            return None
        problem = "effects or wire events differ from the recorded ones"
        return Mismatch(batch.records[0].position, batch.batch_id, problem)


async def replay_session(
    store: Store,
    session: str,
    make_projection: MakeProjection,
    encode: Callable[[object], bytes],
    progress: Callable[[int, int], None] = lambda position, end: None,
) -> Replay:
    """Read and fold a whole session; ``progress`` is told of how many events how many are done. Raises SessionUnknown,
    SessionUnreadable, and StoreFailed for a store that cannot be read now."""
    end = (await store.session(session)).position
    replayer = Replayer(make_projection, encode)
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
            break
        for batch in batches:
            replayer.fold(batch)
        progress(replay.state.position, end)
    if replay.state.position < end:
        problem = f"the log ends at position {replay.state.position}, and went on to {end}"
        raise SessionUnreadable(problem, replay.state.position + 1, replay)
    return replay
