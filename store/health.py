"""Whether a store takes writes, as seen by those who write: what ``/readyz`` says of it.

Nothing is written for the sake of asking. Each server says once a second that it lives (Store.survey), so there is always a
fresh write to judge by, and whatever sessions append is judged with it: on a full disk small writes may fit where big ones
do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from core.ports.store import Owned, StoreError, StoreFailed

CALM_S = 5.0
"""Two transactions that fail within so long are a fault; so long without a failure ends it."""
STALLED_S = 5.0
"""Writes that wait for longer than this are a fault too: a disk or a database that hangs."""


@attrs.define
class Health:
    """One failure is no fault: its sessions begin again from the log, others go on. Times in s on the clock of the queue."""

    _text: str = ""
    _failed_at: float = float("-inf")
    _ill: bool = False
    _waiting_since: float | None = None
    """None: nothing is queued."""

    def waits(self, now: float) -> None:
        """Something was queued."""
        if self._waiting_since is None:
            self._waiting_since = now

    def answered(self, outcomes: Sequence[Owned | StoreError | None], left: int, now: float) -> None:
        """A transaction ended; ``left`` items are still queued. A refusal is no failure, nor is one session's bad row
        among others that were written."""
        self._waiting_since = now if left else None
        failures = [outcome for outcome in outcomes if isinstance(outcome, StoreFailed)]
        if failures and len(failures) == len(outcomes):
            self.failed(str(failures[0]), now)

    def failed(self, text: str, now: float) -> None:
        """The database did not take a write."""
        self._ill = self._ill or now - self._failed_at < CALM_S
        self._text, self._failed_at = text, now

    def fault(self, now: float) -> str | None:
        """Why writes fail, or do not come back; None when they do neither."""
        if self._waiting_since is not None and now - self._waiting_since > STALLED_S:
            return f"writes have waited for {now - self._waiting_since:.0f} s"
        if now - self._failed_at >= CALM_S:
            self._ill = False
        return self._text if self._ill else None
