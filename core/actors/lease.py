"""The third fence at the socket: a server writes only within LEASE_S of the last proof that the session is its own, and a
new owner writes nothing until the old one's proof must have run out. All times are trio's clock, in s.
"""

from __future__ import annotations

import attrs

LEASE_S = 1.0


@attrs.define
class Lease:
    """``proved_at``: when that proof was asked for (it may have been given later). ``quiet_until``: the old owner may
    still write until then."""

    proved_at: float
    quiet_until: float = 0.0

    def proved(self, asked_at: float) -> None:
        """The store confirmed our term, some time after ``asked_at``."""
        self.proved_at = max(self.proved_at, asked_at)

    def holds(self, now: float) -> bool:
        """Whether a write to the socket is safe now."""
        return now < self.proved_at + LEASE_S and now >= self.quiet_until
