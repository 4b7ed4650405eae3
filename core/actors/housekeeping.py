"""What a server does about ownership while nothing happens: it says that it lives, finds out which of its sessions another
server has taken, and ends those that nobody owns and nobody comes back to.

All of it hangs on one question to the store, asked every second (``Store.survey``). Its answer

* renews the lease of every session of ours at once (a sender that is idle need not ask by itself);
* shows a session that is not ours any more, also when the store could not tell us at once (``Store.watch_terms``): its
  actor and its socket end, and the client resumes where the session is;
* names the sessions without an owner: their server is silent, or said goodbye, or is this one and has lost them. Whoever
  sees one past its deadline, on the store's clock, takes its term and closes it, if its log still ends where it did when
  that was found out. So a client that comes back at that moment, here or elsewhere, finds its session, or finds it closed.

A client that was attached when its server died has the session's grace to come back, counted from when we first saw that
the owner is gone: the log cannot know when that was.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

import attrs
import trio

from core.actors.crashes import contained
from core.actors.session import Session
from core.ports.store import SessionRow, Store, StoreError, TermRefused
from core.session.deadlines import Deadline, earliest
from core.session.state import Phase, SessionState
from core.session.time_units import NS_PER_MS

SURVEY_S = 1.0
EXPIRY_MS = 10_000
"""A server that has not called for so long owns nothing any more, as far as sweeping is concerned. (A client's token opens
its session at any time, whoever owns it.)"""

SETTLE_MS = 5_000
"""A session that has just lost its owner is left alone for so long before its log is read: most clients are back by then."""

GRACE_EXPIRED = "disconnect_grace_expired"

log = logging.getLogger("duologue.supervisor")


@attrs.define
class _Lost:
    """A session without an owner. ``seen_ns``: since when we know, on the store's clock. ``folded``: ``due`` is known.
    ``spoilt``: its log meets a fault of ours, and would again: it is left to a client, or to a server without the fault."""

    position: int
    seen_ns: int
    folded: bool = False
    due: Deadline | None = None
    spoilt: bool = False


@attrs.define
class Housekeeper:
    """``sessions`` are those that live here; ``read_state`` folds a log (None: it cannot be read here); ``end`` closes the
    session of a row with a reason, unless somebody has come for it; whether it did."""

    store: Store
    server_id: str
    sessions: Mapping[str, Session]
    read_state: Callable[[str], Awaitable[SessionState | None]]
    end: Callable[[SessionRow, str], Awaitable[bool]]
    _lost: dict[str, _Lost] = attrs.field(factory=dict)
    """Invariant: only sessions of the last survey."""
    _silent: bool = False

    async def run(self) -> None:
        """For as long as the server lives."""
        self.store.watch_terms(self.hear_of_term)
        while True:
            try:
                await self.look_around()
                self._silent = False
            except StoreError as error:
                if not self._silent:
                    log.warning("the store cannot be surveyed: %s", error)
                self._silent = True
            await trio.sleep(SURVEY_S)

    def hear_of_term(self, session_id: str, term: int) -> None:
        """A term was given out, perhaps to ourselves."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.lose_term(term)

    async def look_around(self) -> int:
        """One survey and what follows from it; how many sessions were ended. Raises StoreError."""
        ours, asked_at = dict(self.sessions), trio.current_time()
        survey = await self.store.survey(self.server_id, EXPIRY_MS)
        owned = {row.session: row for row in survey.owned}
        for session_id, session in ours.items():
            self._compare(session, owned.get(session_id), asked_at)
        abandoned = [row for row in survey.owned if row.session not in ours and row.session not in self.sessions]
        return await self._sweep((*survey.ownerless, *abandoned), survey.now_ns)

    def _compare(self, session: Session, row: SessionRow | None, asked_at: float) -> None:
        if row is not None and row.term == session.term:
            session.lease.proved(asked_at)
        elif row is not None:
            session.lose_term(row.term)
        elif session.state.phase is not Phase.CLOSED:
            session.fail(TermRefused("the session is not ours any more"))

    async def _sweep(self, rows: Iterable[SessionRow], now_ns: int) -> int:
        known, self._lost = self._lost, {}
        swept = 0
        for row in rows:
            lost = known.get(row.session)
            if lost is None or (lost.position != row.position and not lost.spoilt):
                lost = _Lost(row.position, now_ns)
            if not lost.folded and now_ns >= lost.seen_ns + SETTLE_MS * NS_PER_MS:
                await self._fold(row, lost)
            if lost.due is not None and lost.due.at_ns <= now_ns and row.session not in self.sessions:
                log.info("session %s has no owner and is over: %s", row.session, lost.due.kind)
                swept += await self._end(row, lost, lost.due.kind)
            else:
                self._lost[row.session] = lost
        return swept

    async def _fold(self, row: SessionRow, lost: _Lost) -> None:
        with contained(row.session, "has no owner, and is left so", StoreError) as crash:
            state = await self.read_state(row.session)
            lost.due = None if state is None else due_without_owner(state, lost.seen_ns)
        lost.folded, lost.spoilt = True, bool(crash.kind)

    async def _end(self, row: SessionRow, lost: _Lost, reason: str) -> bool:
        with contained(row.session, "has no owner, and could not be ended", StoreError) as crash:
            return await self.end(row, reason)
        # Not tried again, for each try takes a term: the log would grow by one each time.
        lost.due, lost.spoilt = None, bool(crash.kind)
        self._lost[row.session] = lost
        return False


def due_without_owner(state: SessionState, lost_ns: int) -> Deadline | None:
    """When a session whose owner was lost at ``lost_ns`` is over if no client comes."""
    due = earliest(state)
    if state.phase not in (Phase.OPEN, Phase.PAUSED) or not state.attachment.attached:
        return due
    grace = Deadline(lost_ns + state.config.disconnect_grace_ms * NS_PER_MS, GRACE_EXPIRED)
    return grace if due is None or grace.at_ns < due.at_ns else due
