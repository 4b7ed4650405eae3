"""What every store does with what it is asked to write: check it, let it into the bounded queue, hand the answer on.

A store derives from QueuedStore and says who writes (``_enqueue``) and by which clock; the order, the bounds and the way
to wait for an answer are the same everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import trio

from core.ports.store import AppendDone, Batch, Owned, StoreBusy, StoreError, StoreFailed, StoreStatistics
from core.session.events import SessionOpened
from store.planning import Beat, CreateLog, Request, TakeTerm, check_owner, encode_batch
from store.queueing import Admission, Item, Outcome, QueueLimits

AWAY = "the database is away"


class QueuedStore(ABC):
    """The writing half of a Store."""

    def __init__(self, limits: QueueLimits) -> None:
        self._admission = Admission(limits)

    @abstractmethod
    def _enqueue(self, item: Item) -> bool:
        """Give ``item`` to the writer, which settles it with the admission. False: the store is closed, nothing was
        queued."""

    @abstractmethod
    def _queue_clock(self) -> float:
        """The writer's monotonic clock, in s."""

    def _is_away(self) -> bool:
        """Whether the database cannot be reached now: appends may wait for it, who asks had better know at once."""
        return False

    async def create(self, session: str, server: str, opened: SessionOpened, now_ns: int) -> Owned:
        """See Store.create. Raises RecordInvalid for what no log can hold, StoreBusy. Cancelled, it may still
        happen."""
        return await self._take(CreateLog(session, server, opened, now_ns))

    async def take_term(self, session: str, server: str, now_ns: int, position: int | None = None) -> Owned:
        """See Store.take_term. Raises StoreBusy. Cancelled, it may still happen; the next term is then one higher."""
        return await self._take(TakeTerm(session, server, now_ns, position))

    def append_nowait(self, batch: Batch, done: AppendDone) -> None:
        """See Store.append_nowait. Raises RecordInvalid for what no log can hold."""

        def answered(outcome: Outcome) -> None:
            assert not isinstance(outcome, Owned)
            done(outcome)

        self._submit(encode_batch(batch), answered, batch.urgent, batch.patient)

    async def release(self, server: str) -> None:
        """See Store.release."""
        await self._ask(Beat(server, leaving=True), urgent=True)

    def fault(self) -> str | None:
        """See Store.fault."""
        return self._admission.health.fault(self._queue_clock())

    def statistics(self) -> StoreStatistics:
        """See Store.statistics."""
        return self._admission.statistics()

    async def _beat(self, server: str) -> None:
        """The half of Store.survey that writes."""
        await self._ask(Beat(server), urgent=False)

    async def _take(self, request: CreateLog | TakeTerm) -> Owned:
        outcome = await self._ask(request, urgent=True)
        assert outcome is not None
        return outcome

    async def _ask(self, request: CreateLog | TakeTerm | Beat, urgent: bool) -> Owned | None:
        check_owner(request)
        if self._is_away():
            self._admission.health.failed(AWAY, self._queue_clock())
            raise StoreFailed(AWAY)
        outcomes: list[Outcome] = []
        answered = trio.Event()

        def answer(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        self._submit(request, answer, urgent)
        await answered.wait()
        (outcome,) = outcomes
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    def _submit(
        self, request: Request, answered: Callable[[Outcome], None], urgent: bool, patient: bool = False
    ) -> None:
        item = self._admission.admit(request, answered, urgent, self._queue_clock(), patient)
        if not self._enqueue(item):
            self._admission.withdraw(item)
            raise StoreBusy("the store is closed")
