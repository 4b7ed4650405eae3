"""The third fence at the socket: a server writes only within LEASE_S of the last proof that the session is its own, and a
new owner writes nothing until the old one's proof must have run out. All times are trio's clock, in s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from core.ports.store import Store, StoreError, StoreFailed
from core.session import events as e

if TYPE_CHECKING:
    from core.actors.session import Session

LEASE_S = 1.0

RENEWAL_PATIENCE_S = 60.0
RENEWAL_RETRY_S = 0.25
"""How long an idle session waits for a store that cannot be read, and how often it asks."""


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


@attrs.define
class Holders:
    """Which servers may have a socket of a session, as its log tells: attachments that nobody let go of, by generation."""

    servers: dict[int, str] = attrs.field(factory=dict)

    def note(self, event: e.Event, server: str) -> None:
        """The next event of the log; ``server`` owns the session after it."""
        match event:
            case e.Attached():
                # A server that replaces its own attachment has fenced it in memory.
                self.servers = {held: by for held, by in self.servers.items() if by != server}
                self.servers[event.generation] = server
            case e.Detached():
                self.servers.pop(event.generation, None)
            case e.TokenConfirmed():
                # Its client has the answer to its resume, which was written only when older sockets were silent.
                self.servers = {held: by for held, by in self.servers.items() if held >= event.generation}

    def others(self, server: str) -> bool:
        """Whether a server other than this one may still write."""
        return any(held_by != server for held_by in self.servers.values())


async def renew(session: Session, store: Store) -> None:
    """Wait until the old owner must be silent, and ask the store whether the session is still ours. May come back without
    a new proof: the caller looks again."""
    lease = session.lease
    await trio.sleep_until(lease.quiet_until)
    asked_at = trio.current_time()
    try:
        row = await store.session(session.session_id)
    except StoreFailed as error:
        # The store may be back in a moment; until then the socket is silent. The next append has the last word.
        if asked_at > lease.proved_at + RENEWAL_PATIENCE_S:
            session.fail(error)
        else:
            await trio.sleep(RENEWAL_RETRY_S)
    except StoreError as error:
        session.fail(error)
    else:
        session.lose_term(row.term)
        if not session.ended:
            lease.proved(asked_at)
