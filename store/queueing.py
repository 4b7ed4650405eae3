"""The bounds and the order of what waits to be written; every backend's ``append_nowait`` goes through here.

All of it runs in the event loop, so nothing is locked. An item counts from the call to its answer, also while it is
being written. One session may hold only its share of the queue, so that a flood of one refuses nothing of another.

"After one fails, those queued behind it fail too": the batches of a session share an *attempt*. Whoever writes puts the
first error into it and fails every later batch of that attempt with the same error. When the failure is delivered in
the event loop the attempt is closed; what is queued after that belongs to a new one, and the log's position judges
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import attrs

from core.ports.store import Owned, StoreBusy, StoreError, StoreFailed, StoreStatistics
from store.health import Health
from store.planning import AppendBatch, Request

Outcome = Owned | StoreError | None
"""Owned: create and take_term. None: the batch is in. An error: it was refused, or nobody knows (StoreFailed)."""


@attrs.frozen
class QueueLimits:
    """Bounds in items (batches and term requests) and in bytes, for all sessions and for one."""

    items_max: int = 65_536
    bytes_max: int = 128 * 1024 * 1024
    session_items_max: int = 4_096
    session_bytes_max: int = 32 * 1024 * 1024


DEFAULT_LIMITS = QueueLimits()


@attrs.define(eq=False)
class Attempt:
    """A run of batches of one session that stand or fall in order. ``error`` is set once, by whoever writes."""

    error: StoreError | None = None


@attrs.frozen(eq=False)
class Item:
    """A request on its way. ``answered`` is called once, in the event loop."""

    request: Request
    answered: Callable[[Outcome], None]
    size_bytes: int
    attempt: Attempt
    urgent: bool
    queued_at: float
    """On the writer's own monotonic clock, in s."""
    patient: bool = False
    """It may wait for others longer than the window."""

    def inherited(self) -> StoreError | None:
        """The error of a batch before this one that this one must share. Term requests stand for themselves."""
        return self.attempt.error if isinstance(self.request, AppendBatch) else None

    def note(self, outcome: Outcome) -> None:
        """Whoever writes tells the outcome, before it looks at the next item of the session."""
        if isinstance(self.request, AppendBatch) and isinstance(outcome, StoreError) and self.attempt.error is None:
            self.attempt.error = outcome


def all_failed(items: Iterable[Item], error: StoreFailed) -> list[Outcome]:
    """Everything fails with ``error`` but what had been refused already; an outcome for each, in order."""
    outcomes: list[Outcome] = []
    for item in items:
        item.note(error)
        outcomes.append(item.inherited() or error)
    return outcomes


@attrs.define
class Admission:
    """Counts what is queued and lets in what fits."""

    limits: QueueLimits
    items: int = 0
    bytes: int = 0
    appended_batches: int = 0
    commits: int = 0
    health: Health = attrs.field(factory=Health)
    _session_items: Counter[str] = attrs.field(factory=Counter)
    _session_bytes: Counter[str] = attrs.field(factory=Counter)
    _attempts: dict[str, Attempt] = attrs.field(factory=dict)
    """Invariant: only sessions with items in the queue are in these three."""

    def admit(
        self, request: Request, answered: Callable[[Outcome], None], urgent: bool, now: float, patient: bool = False
    ) -> Item:
        """Count a request in. Raises StoreBusy, and then nothing was counted."""
        session, size_bytes = request.session, _size_bytes(request)
        self._check(
            "the store's queue", self.items, self.limits.items_max, self.bytes + size_bytes, self.limits.bytes_max
        )
        self._check(
            f"the queue of {session}",
            self._session_items[session],
            self.limits.session_items_max,
            self._session_bytes[session] + size_bytes,
            self.limits.session_bytes_max,
        )
        self.items += 1
        self.bytes += size_bytes
        self._session_items[session] += 1
        self._session_bytes[session] += size_bytes
        attempt = self._attempts.setdefault(session, Attempt())
        self.health.waits(now)
        return Item(request, answered, size_bytes, attempt, urgent, now, patient)

    def _check(self, queue: str, items: int, items_max: int, size_bytes: int, bytes_max: int) -> None:
        # An empty queue takes any one item, however big: else it could never be written.
        if items and (items >= items_max or size_bytes > bytes_max):
            raise StoreBusy(f"{queue} is full: {items} of {items_max} items, {size_bytes} of {bytes_max} bytes")

    def settle_group(self, outcomes: Sequence[tuple[Item, Outcome]], now: float) -> None:
        """Count the items of a transaction out and answer them."""
        self.commits += 1
        self.health.answered([outcome for _, outcome in outcomes], self.items - len(outcomes), now)
        for item, outcome in outcomes:
            self._settle(item, outcome)

    def _settle(self, item: Item, outcome: Outcome) -> None:
        session = item.request.session
        if isinstance(item.request, AppendBatch):
            self.appended_batches += outcome is None
            # Closed only by the delivery of its own failure: until then the caller goes on in good faith.
            if isinstance(outcome, StoreError) and self._attempts[session] is item.attempt:
                self._attempts[session] = Attempt()
        self.withdraw(item)
        item.answered(outcome)

    def withdraw(self, item: Item) -> None:
        """Count an item out without an answer."""
        session = item.request.session
        self.items -= 1
        self.bytes -= item.size_bytes
        self._session_items[session] -= 1
        self._session_bytes[session] -= item.size_bytes
        if not self._session_items[session]:
            del self._session_items[session], self._session_bytes[session], self._attempts[session]

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(self.items, self.bytes, self.appended_batches, self.commits)


def _size_bytes(request: Request) -> int:
    return request.size_bytes if isinstance(request, AppendBatch) else 1_024
