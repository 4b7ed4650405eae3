"""A log that is read back: everything that an actor is made of, folded from the records alone.

What lies before the replay window is most of a long log, and nobody can ask for its frames: the machine folds it as ever,
the projection only counts. A fold is of the whole log or goes on from one; there are no snapshots (decision 022).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from core.actors.lease import Holders
from core.actors.outbox import Outbox
from core.ports.projection import Projection
from core.ports.store import StoredBatch
from core.session import events as e
from core.session.apply import apply
from core.session.digest import CHAIN_START
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
    chain: bytes = CHAIN_START
    holders: Holders = attrs.field(factory=Holders)

    def take(self, batches: Sequence[StoredBatch], last_ns: int) -> None:
        """Fold the next batches, at least one. ``last_ns``: the time of the log's last record, from which the replay window
        reaches back. Raises LogBroken."""
        oldest_ns = last_ns - self.outbox.window_ms * NS_PER_MS
        if batches[-1].records[-1].at_ns < oldest_ns:
            self._pass_over(batches)
        else:
            self._restore(batches, oldest_ns)
        self.chain = batches[-1].chain or self.chain
        self.outbox.durable = self.state.position

    def _pass_over(self, batches: Sequence[StoredBatch]) -> None:
        """Batches that nobody can ask for again. This is where the time of a long resume goes."""
        state, pass_over = self.state, self.projection.pass_over
        for batch in batches:
            for record in batch.records:
                apply(state, record)
                pass_over(record, state)
                if type(record.event) in _NOTED:
                    self._note(record.event)
        self.outbox.pass_over(self.projection.number)

    def _restore(self, batches: Sequence[StoredBatch], oldest_ns: int) -> None:
        for batch in batches:
            for record in batch.records:
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
