"""The supervisor: all sessions of this server. It opens them, finds them again in the log, and keeps one session's crash
from being another's.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import attrs
import trio

from core.actors.attachment import Attachment
from core.actors.crashes import contained
from core.actors.door import RESUME_ELSEWHERE
from core.actors.folding import Folded, begin_fold, fold_log
from core.actors.housekeeping import Housekeeper
from core.actors.journal import batch_of
from core.actors.lease import LEASE_S, Lease
from core.actors.line import RETRY_S
from core.actors.session import Ports, Session
from core.actors.tokens import ResumeRefused, check_token, check_token_in_log, token_hash, unknown
from core.ports.projection import Projection
from core.ports.socket import Socket
from core.ports.store import (
    LogUnreadable,
    Owned,
    PositionConflict,
    SessionRow,
    SessionUnknown,
    StoreError,
    StoreFailed,
    TermRefused,
)
from core.session import commands as c
from core.session import events as e
from core.session.apply import LogBroken
from core.session.config import SessionConfig
from core.session.machine import step
from core.session.parts import bodies_needed
from core.session.state import SessionState

log = logging.getLogger("duologue.supervisor")

TOKEN_BYTES = 32
BURY_TIMEOUT_S = 10
"""A store that has not closed a dead session's log by then is not waited for."""

WITHOUT_WORKERS_MAX = 64
"""While no worker is up, so many sessions may wait for one."""

MakeProjection = Callable[[str, int], Projection | None]
"""(dialect, version) -> a new projection, None when this server has none of that version."""


class SessionsFull(Exception):
    """The server holds as many sessions as it may; try again later."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"this server holds {limit} sessions already")
        self.limit = limit


class Draining(Exception):
    """The server is shutting down and opens no session."""


@attrs.frozen
class SupervisorStatistics:
    """Counts since the start, and what is live now."""

    sessions: int
    attached: int
    sessions_max: int
    opened: int
    resumed: int
    failed: int


class Supervisor:
    """Made by ``open_supervisor``."""

    def __init__(
        self,
        ports: Ports,
        server_id: str,
        nursery: trio.Nursery,
        make_projection: MakeProjection,
        sessions_max: int | None,
        make_token: Callable[[], str],
        make_id: Callable[[], str],
    ) -> None:
        self._ports = ports
        self._server_id = server_id
        self._nursery = nursery
        self._make_projection = make_projection
        self._make_token = make_token
        self._make_id = make_id
        self._sessions: dict[str, Session] = {}
        self._opening = 0
        self._closing = 0
        """Sessions that are over, and of which the runtime still has an ear."""
        self._resuming: dict[str, trio.Lock] = {}
        """Invariant: of sessions that a connection asks for at this moment."""
        self._opened = self._resumed = self._failed = 0
        self._moved = trio.Event()
        self._housekeeper = Housekeeper(ports.store, server_id, self._sessions, self._read_state, self._end_lost)
        self._sessions_max = sessions_max
        self.draining = False

    async def moved(self) -> None:
        """Wait until there may be room that there was not, or the drain begins."""
        await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The live sessions of this server, by id."""
        return self._sessions

    @property
    def sessions_max(self) -> int:
        """So many may live here now: what the workers that are up can hold together, or the operator's limit."""
        capabilities = self._ports.runtime.capabilities
        room = WITHOUT_WORKERS_MAX if capabilities is None else capabilities.sessions_max
        return room if self._sessions_max is None else min(self._sessions_max, room)

    @property
    def has_room(self) -> bool:
        """Whether one more session may be opened now; true of the instant only, while nobody awaits."""
        return not self.draining and len(self._sessions) + self._opening + self._closing < self.sessions_max

    @property
    def store_fault(self) -> str | None:
        """Why sessions cannot be written at the moment, None when they can; see Store.fault."""
        return self._ports.store.fault()

    def statistics(self) -> SupervisorStatistics:
        """Now."""
        attached = sum(session.attachment is not None for session in self._sessions.values())
        return SupervisorStatistics(
            len(self._sessions), attached, self.sessions_max, self._opened, self._resumed, self._failed
        )

    # -- opening and resuming ----------------------------------------------------------------------------------

    async def open(self, config: SessionConfig, projection: Projection) -> Session:
        """A new session with its log and its actor, no client yet. Raises SessionsFull, Draining, StoreError."""
        self._admit()
        self._opening += 1
        try:
            session_id = self._make_id()
            opened = e.SessionOpened(session_id, projection.dialect, projection.version, config)
            await self._ports.store.create(session_id, self._server_id, opened, self._ports.now_ns())
            folded = await self._fold(session_id, projection)
            assert folded is not None
            session = self._start(folded, fresh=True)
        finally:
            self._opening -= 1
            self._move()
        self._opened += 1
        return session

    async def resume(self, session_id: str, token: str, number: int) -> Session:
        """The session, live here or read back from its log, for a client that has everything up to ``number``.

        Raises ResumeRefused, SessionsFull, Draining, StoreError. The caller attaches next, with the same number.
        """
        await self._refuse_wrong(session_id, token)
        lock = self._resuming.setdefault(session_id, trio.Lock())
        try:
            async with lock:
                session = self._sessions.get(session_id)
                if session is None or session.ended:
                    session = await self._read_back(session_id, token)
                else:
                    check_token(session.state, token)
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._resuming.pop(session_id, None)
        if number > session.outbox.head:
            raise ResumeRefused("session_resume_conflict", f"the stream ends at {session.outbox.head}, not {number}")
        if not session.outbox.knows(number):
            raise ResumeRefused("resync_required", f"numbers below {session.outbox.first_number} are not kept any more")
        if token_hash(token) == session.state.attachment.token_hash:
            session.confirm_token()
        self._resumed += 1
        return session

    async def _refuse_wrong(self, session_id: str, token: str) -> None:
        """Before the token's bearer waits for anything, or costs anybody a fold. What is refused here is refused now and
        then: a wrong token never becomes right."""
        session = self._sessions.get(session_id)
        if session is not None and not session.ended:
            try:
                check_token(session.state, token)
            except ResumeRefused:
                if not await self._moved_away(session):
                    raise
            else:
                return
        await check_token_in_log(self._ports.store, session_id, token)

    async def _moved_away(self, session: Session) -> bool:
        """Whether another server has the session, of which we were not told yet: it may have given out a newer token."""
        with suppress(SessionUnknown):
            session.lose_term((await self._ports.store.session(session.session_id)).term)
        return session.ended

    def attachment(self, socket: Socket, number: int | None = None) -> Attachment:
        """A client's hold on a session, with a resume token of its own, for ``Session.attach``."""
        token = self._make_token()
        return Attachment(socket, number, token_hash(token), token)

    async def _read_back(self, session_id: str, token: str) -> Session:
        """Check the token before the term is taken (a wrong one must not disturb the owner), fold after it."""
        self._admit()
        self._opening += 1
        try:
            seen = await self._fold(session_id)
            if seen is None:
                raise unknown()
            check_token(seen.state, token)
            asked_at = trio.current_time()
            owned = await self._take_term(session_id)
            taken_at = trio.current_time()
            folded = await self._fold(session_id, onto=seen)
            assert folded is not None
            quiet_until = taken_at + LEASE_S if folded.holders.others(self._server_id) else 0.0
            if folded.state.term != owned.term:
                raise ResumeRefused("session_resume_conflict", "another server took the session meanwhile")
            check_token(folded.state, token)  # the old owner may have closed it, or given it to another client
            bodies = await self._load_input(folded.state)
            session = self._start(folded, fresh=False, lease=Lease(asked_at, quiet_until))
            session.keep_input(bodies)
        finally:
            self._opening -= 1
            self._move()
        return session

    async def _take_term(self, session_id: str) -> Owned:
        try:
            return await self._ports.store.take_term(session_id, self._server_id, self._ports.now_ns())
        except SessionUnknown:
            raise unknown() from None

    async def _fold(
        self, session_id: str, projection: Projection | None = None, onto: Folded | None = None
    ) -> Folded | None:
        """Read a log and fold it, its stream along with it; ``onto`` what was folded of it before. None: no such session."""

        def begin(opened: e.Event) -> Folded:
            return self._begin_fold(opened, projection)

        try:
            return await fold_log(self._ports.store, session_id, begin, onto)
        except SessionUnknown:
            return None
        except LogBroken as fault:
            raise LogUnreadable(str(fault)) from None

    def _begin_fold(self, opened: e.Event, projection: Projection | None) -> Folded:
        if not isinstance(opened, e.SessionOpened):
            raise LogUnreadable("its beginning is missing")
        projection = projection or self._make_projection(opened.dialect, opened.projection_version)
        if projection is None:
            raise ResumeRefused("resync_required", "this server does not know the session's stream version")
        return begin_fold(opened, projection)

    async def _load_input(self, state: SessionState) -> dict[str, bytes]:
        bodies, missing = dict[str, bytes](), tuple(dict.fromkeys(bodies_needed(state)))
        while missing:
            found = await self._ports.store.bodies(state.session_id, missing)
            bodies.update({digest: data for digest, data in found.items() if data is not None})  # else it was erased
            missing = missing[len(found) :]
        return bodies

    def _admit(self) -> None:
        if self.draining:
            raise Draining
        if not self.has_room:
            raise SessionsFull(self.sessions_max)

    # -- sessions without an owner -----------------------------------------------------------------------------

    async def sweep(self) -> int:
        """Look around in the store now (it also happens by itself): end the sessions that nobody owns and to which no
        client came back in time; how many. Raises StoreError."""
        return await self._housekeeper.look_around()

    async def keep_house(self) -> None:
        """Say that this server lives, and look around, for as long as it does."""
        await self._housekeeper.run()

    async def _read_state(self, session_id: str) -> SessionState | None:
        try:
            folded = await self._fold(session_id)
        except ResumeRefused:  # a stream of another version: a server that knows it will come by
            return None
        except LogUnreadable as error:  # perhaps the same; the other sessions are swept all the same
            log.error("session %s has no owner, and a log that cannot be read here: %s", session_id, error)
            return None
        return None if folded is None else folded.state

    async def _end_lost(self, row: SessionRow, reason: str) -> bool:
        """Close a session that nobody owns, as ``row`` has it; whether it was."""
        try:
            await self._close_in_log(row.session, reason, row.position)
        except (PositionConflict, TermRefused):
            return False  # somebody has come for it meanwhile
        except (StoreError, ResumeRefused) as error:
            log.error("session %s could not be closed in its log: %s", row.session, error)
            return False
        return True

    # -- actors ------------------------------------------------------------------------------------------------

    def _start(self, folded: Folded, fresh: bool, lease: Lease | None = None) -> Session:
        session = Session(self._ports, folded.state, folded.projection, folded.outbox, fresh, lease)
        self._sessions[session.session_id] = session
        self._nursery.start_soon(self._run, session)
        return session

    async def _run(self, session: Session) -> None:
        """The one boundary of a session: whatever goes wrong in it becomes the session's end, never the server's."""
        try:
            with contained(session.session_id, "crashed") as crash:
                await session.run()
        finally:
            if self._sessions.get(session.session_id) is session:
                del self._sessions[session.session_id]
            self._closing += 1  # with no await since: the ear counts until it is closed
        self._failed += (session.failure is not None) + bool(crash.kind)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._close_ear, session)
            if crash.kind:
                with contained(session.session_id, "could not be closed in its log"):
                    await self._bury(session, f"internal_error:{crash.kind}")

    async def _close_ear(self, session: Session) -> None:
        """Go on telling the runtime that the session is over, if its full queue refused to hear it; unless the session
        lives here again, with an ear of the same name. A fault in this costs the worker an ear, and nobody a session."""
        try:
            with contained(session.session_id, "was left open at its worker"):
                while session.session_id not in self._sessions and not session.line.settle():
                    await trio.sleep(RETRY_S)
        finally:
            self._closing -= 1
            self._move()

    async def _bury(self, session: Session, reason: str) -> None:
        """Close a session whose memory cannot be trusted, from its log alone; unless somebody has come for it: then its
        memory is a new one, and there is nothing to bury."""
        session_id = session.session_id
        try:
            while (row := await self._ports.store.session(session_id)).term == session.term:
                with suppress(PositionConflict):  # what the dead one had queued came first, or somebody did
                    await self._close_in_log(session_id, reason, row.position)
                    return
        except TermRefused:
            return
        except (StoreError, ResumeRefused) as error:
            log.error("session %s could not be closed in its log: %s", session_id, error)

    async def _close_in_log(self, session_id: str, reason: str, position: int) -> None:
        """Only if the log ends at ``position``. Raises StoreError, ResumeRefused."""
        owned = await self._ports.store.take_term(session_id, self._server_id, self._ports.now_ns(), position)
        folded = await self._fold(session_id)
        if folded is None:
            return
        if folded.state.term != owned.term:  # nobody writes under a term that was given to another
            raise TermRefused(f"term {folded.state.term} was given out, ours is {owned.term}")
        await self._append_close(folded, reason)

    async def _append_close(self, folded: Folded, reason: str) -> None:
        """Raises StoreError; StoreFailed also when the store does not answer."""
        state, written = folded.state, trio.Event()
        outcome: list[StoreError | None] = []
        frames: list[object] = []

        def project(record: e.Record, after: SessionState) -> None:
            frames.extend(folded.projection.fold(record, after))

        result = step(state, c.Close(reason), self._ports.now_ns(), folded.outbox.cursor(), project)
        if not result.records:
            return
        caused = self._ports.encode((result.effects, frames))
        batch = batch_of(state, state.term, result.records, caused, {})

        def done(error: StoreError | None) -> None:
            outcome.append(error)
            written.set()

        self._ports.store.append_nowait(batch, done)
        with trio.move_on_after(BURY_TIMEOUT_S) as waited:
            await written.wait()
        if waited.cancelled_caught:
            raise StoreFailed(f"no answer within {BURY_TIMEOUT_S} s")
        if outcome[0] is not None:
            raise outcome[0]

    async def drain(self, timeout_s: float) -> None:
        """Open nothing more; let answers finish, and reach their clients, for at most ``timeout_s``; then end every actor, so
        that its client resumes at another server (or here, after the restart). The sessions stay open in the log."""
        self.draining = True
        self._move()
        with trio.move_on_after(timeout_s):
            while any(session.busy for session in self._sessions.values()):
                await trio.sleep(0.05)
        for session in tuple(self._sessions.values()):
            session.stop(RESUME_ELSEWHERE, "server_restart")
        with trio.move_on_after(10):
            while self._sessions:
                await trio.sleep(0.02)
        with trio.move_on_after(5), suppress(StoreError):
            await self._ports.store.release(self._server_id)


@asynccontextmanager
async def open_supervisor(
    ports: Ports,
    *,
    server_id: str,
    make_projection: MakeProjection,
    sessions_max: int | None = None,
    make_token: Callable[[], str] = lambda: secrets.token_urlsafe(TOKEN_BYTES),
    make_id: Callable[[], str] = lambda: f"duplex-{secrets.token_hex(16)}",
) -> AsyncIterator[Supervisor]:
    """All sessions of a server, for as long as the context lasts. Leaving it without ``drain`` is a crash as far as the
    sessions are concerned: their logs stay as they are."""
    async with trio.open_nursery() as nursery:
        supervisor = Supervisor(ports, server_id, nursery, make_projection, sessions_max, make_token, make_id)
        nursery.start_soon(supervisor.keep_house)
        yield supervisor
        nursery.cancel_scope.cancel()
