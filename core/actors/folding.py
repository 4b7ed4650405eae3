"""A log that is read back: everything that an actor is made of, folded from the records alone.

What lies before the replay window is most of a long log, and nobody can ask for its frames: the machine folds it as ever,
the projection only counts. A fold is of the whole log or goes on from one; there are no snapshots (decision 022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from core.actors.lease import Holders
from core.actors.outbox import Outbox
from core.ports.projection import Projection
from core.ports.store import Store, StoreFailed
from core.session import events as e
from core.session.apply import apply
from core.session.state import SessionState
from core.session.time_units import NS_PER_MS

_NOTED = frozenset({e.Attached, e.Detached, e.TokenConfirmed, e.EpochBump})
"""What the outbox and the holders must know of beside the frames."""


@attrs.define
class Folded:
    """A session as its log has it up to ``state.position``. ``outbox`` counts everything as handed over."""

    state: SessionState
    projection: Projection
    outbox: Outbox
    holders: Holders = attrs.field(factory=Holders)

    def take(self, records: Sequence[e.Record], last_ns: int) -> None:
        """Fold the next records, at least one. ``last_ns``: the time of the log's last record, from which the replay window
        reaches back. Raises LogBroken."""
        oldest_ns = last_ns - self.outbox.window_ms * NS_PER_MS
        if records[-1].at_ns < oldest_ns:
            self._pass_over(records)
        else:
            self._restore(records, oldest_ns)
        self.outbox.durable = self.state.position

    def _pass_over(self, records: Sequence[e.Record]) -> None:
        """Records that nobody can ask for again. This is where the time of a long resume goes."""
        state, pass_over = self.state, self.projection.pass_over
        for record in records:
            apply(state, record)
            pass_over(record, state)
            if type(record.event) in _NOTED:
                self._note(record.event)
        self.outbox.pass_over(self.projection.number)

    def _restore(self, records: Sequence[e.Record], oldest_ns: int) -> None:
        for record in records:
            apply(self.state, record)
            if record.at_ns < oldest_ns:
                self.projection.pass_over(record, self.state)
                self.outbox.pass_over(self.projection.number)
            elif frames := self.projection.fold(record, self.state):
                self.outbox.restore(frames, record.at_ns)
            self._note(record.event)

    def _note(self, event: e.Event) -> None:
        self.holders.note(event, self.state.server)
        if isinstance(event, e.EpochBump) and event.disposition == "cut":
            self.outbox.cut(event.epoch, event.cursor, 0)


def begin_fold(opened: e.SessionOpened, projection: Projection) -> Folded:
    """Nothing of the log that begins with ``opened``."""
    outbox = Outbox(opened.config.replay_window_ms, opened.config.replay_window_bytes)
    return Folded(SessionState(), projection, outbox)


Begin = Callable[[e.Event], Folded]
"""Takes a log's first event."""


async def fold_log(store: Store, session_id: str, begin: Begin, onto: Folded | None = None) -> Folded:
    """Read a log and fold it; ``onto`` what was folded of it before. It may happen in a thread of the store's. Raises
    SessionUnknown, StoreFailed, what ``begin`` raises."""
    row = await store.session(session_id)
    folds = [] if onto is None else [onto]

    def take(records: Sequence[e.Record]) -> None:
        if not folds:
            folds.append(begin(records[0].event))
        folds[0].take(records, row.updated_ns)

    await store.scan(session_id, 0 if onto is None else onto.state.position, row.position, take)
    if not folds or folds[0].state.position < row.position:
        raise StoreFailed("another log was put in the place of the one that was read")
    return folds[0]
