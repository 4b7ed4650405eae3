"""Who gets a session now, who waits, and who is sent away.

Theory. The supervisor's table of live sessions is the only account of what is in use: nothing is counted up and down, so
there is no slot that a cancelled task could forget to give back or give back twice. Beside it there are the openings in
flight (held by ``try ... finally``) and the line of those who wait. Whoever is first in the line gives up its place in it
and asks for a session in one step, with no await between; so a slot is never promised to two, and never to none.
"""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable

import attrs
import trio

from adapters.wire.dialect import Waiting
from core.actors.session import Session
from core.actors.supervisor import Draining, SessionsFull, Supervisor
from core.session.time_units import NS_PER_S

TELL_EVERY_S = 3.0
LOOK_EVERY_S = 1.0
"""Room also comes with a worker that is up again, of which nobody tells the line."""
MINUTE_S = 60.0
USUAL_SESSION_S = 120.0
"""How long a session is taken to last, before there is experience with it."""
NEW_EXPERIENCE = 0.3


@attrs.frozen
class Limits:
    """What is allowed. None: no limit. ``queue_max`` 0: nobody waits."""

    queue_max: int = 0
    sessions_per_key: int | None = None
    opens_per_key_per_minute: int | None = None
    events_per_key_per_s: int | None = None


class NotAdmitted(Exception):
    """``code``: resource_exhausted (the house or the line is full) or rate_limit_exceeded (this key has enough)."""

    def __init__(self, code: str, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms


@attrs.define(eq=False)
class Ticket:
    """A place in the line."""

    name: str = attrs.field(factory=lambda: f"q_{secrets.token_hex(6)}")


@attrs.define
class _Allowance:
    """Events that a key may still send now; grows by ``rate`` a second, up to two seconds' worth."""

    rate: int
    left: float
    at_s: float

    def take(self, now_s: float) -> bool:
        self.left = min(2.0 * self.rate, self.left + (now_s - self.at_s) * self.rate)
        self.at_s = now_s
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


Tell = Callable[[Waiting], Awaitable[None]]
Listen = Callable[[], Awaitable[None]]
Open = Callable[[], Awaitable[Session]]


class Admission:
    """One server's door. ``key`` names whose limits count: "" for those who need no key."""

    def __init__(self, supervisor: Supervisor, limits: Limits) -> None:
        self.limits = limits
        self._supervisor = supervisor
        self._line: dict[Ticket, None] = {}
        self._line_moved = trio.Event()
        self._starting: Counter[str] = Counter()
        self._live: dict[str, tuple[str, Session]] = {}
        """Session's id -> (key, it), for those of ``supervisor.sessions`` that came in here."""
        self._opened_at: dict[str, deque[float]] = {}
        self._allowances: dict[str, _Allowance] = {}
        self._usual_s = USUAL_SESSION_S

    @property
    def is_open(self) -> bool:
        """Whether a newcomer gets a session at once. True of the instant only."""
        return self._supervisor.has_room and not self._line

    @property
    def queue_length(self) -> int:
        """How many wait."""
        return len(self._line)

    @property
    def is_full(self) -> bool:
        """Whether a newcomer is sent away: no session is free, and no place in the line. True of the instant only."""
        return not self.is_open and len(self._line) >= self.limits.queue_max

    def live(self, key: str) -> int:
        """Sessions of ``key``, those being opened included."""
        self._settle()
        return self._starting[key] + sum(owner == key for owner, _ in self._live.values())

    # -- sessions -------------------------------------------------------------------------------------------------

    async def open(self, key: str, start: Open, tell: Tell, listen: Listen | None = None) -> Session:
        """A session made by ``start`` (which raises SessionsFull when there is no room), after waiting for it where that
        is allowed; ``tell`` is called at once and then every 3 s of waiting, ``listen`` runs meanwhile, and both may raise
        to give up. Raises NotAdmitted, and what ``start``, ``tell`` and ``listen`` raise."""
        self._check_key(key)
        if not self._line:
            try:
                return await self._start(key, start)
            except SessionsFull as full:
                if not self.limits.queue_max:
                    text = f"This server holds {full.limit} sessions already; try again later."
                    raise NotAdmitted("resource_exhausted", text, round(self._wait_s(1) * 1000)) from None
        if len(self._line) >= self.limits.queue_max:
            text = f"Queue full ({len(self._line)} requests)"
            wait_ms = round(self._wait_s(len(self._line) + 1) * 1000)
            raise NotAdmitted("resource_exhausted", text, wait_ms)
        return await self._wait_in_line(key, start, tell, listen)

    async def _wait_in_line(self, key: str, start: Open, tell: Tell, listen: Listen | None) -> Session:
        ticket = Ticket()
        self._line[ticket] = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_telling, ticket, tell)
                if listen is not None:
                    nursery.start_soon(listen)
                session = await self._take_turn(ticket, key, start)
                nursery.cancel_scope.cancel()
            return session
        except BaseExceptionGroup as group:
            kinds = {type(error) for error in group.exceptions}
            if len(kinds) == 1:  # whoever tells and whoever listens may notice a lost client in the same instant
                raise group.exceptions[0] from None
            raise
        finally:
            if ticket in self._line:
                self._leave_line(ticket)

    def _leave_line(self, ticket: Ticket) -> None:
        del self._line[ticket]
        self._line_moved.set()
        self._line_moved = trio.Event()

    async def _take_turn(self, ticket: Ticket, key: str, start: Open) -> Session:
        while True:
            if self._supervisor.draining:
                raise Draining
            if next(iter(self._line)) is not ticket:
                await self._line_moved.wait()  # only the first waits for room, and makes way when the drain begins
            elif not self._supervisor.has_room:
                with trio.move_on_after(LOOK_EVERY_S):
                    await self._supervisor.moved()
            else:
                self._leave_line(ticket)
                try:
                    return await self._start(key, start)
                except SessionsFull:
                    self._line = {ticket: None, **self._line}  # a resume was faster: still the first

    async def _keep_telling(self, ticket: Ticket, tell: Tell) -> None:
        first = True
        while ticket in self._line:
            position = list(self._line).index(ticket) + 1
            await tell(Waiting(ticket.name, position, len(self._line), round(self._wait_s(position), 1), first))
            first = False
            await trio.sleep(TELL_EVERY_S)

    async def _start(self, key: str, start: Open) -> Session:
        self._starting[key] += 1
        try:
            session = await start()
            self.adopt(key, session)
        finally:
            self._starting[key] -= 1
        return session

    def adopt(self, key: str, session: Session) -> None:
        """A session that came in by its resume token counts for whoever presented it."""
        self._settle()  # else sessions that are over would be kept for as long as nobody asks how many there are
        self._live[session.session_id] = (key, session)

    def _settle(self) -> None:
        """Forget sessions that are over, and learn from how long they lasted: by their logs, for they may have been over
        for hours when somebody looks."""
        for session_id in [name for name in self._live if name not in self._supervisor.sessions]:
            state = self._live.pop(session_id)[1].state
            lasted_s = (state.at_ns - state.opened_ns) / NS_PER_S
            self._usual_s += NEW_EXPERIENCE * (lasted_s - self._usual_s)

    def _wait_s(self, position: int) -> float:
        """How long whoever has that place must reckon with: one session ends every ``usual / sessions`` seconds."""
        self._settle()
        return max(1.0, position * self._usual_s / max(1, self._supervisor.sessions_max))

    # -- keys -----------------------------------------------------------------------------------------------------

    def _check_key(self, key: str) -> None:
        most, a_minute = self.limits.sessions_per_key, self.limits.opens_per_key_per_minute
        if most is not None and self.live(key) >= most:
            text = f"This key holds {most} sessions already; close one first."
            raise NotAdmitted("rate_limit_exceeded", text, round(self._wait_s(1) * 1000))
        if a_minute is None:
            return
        now, opened = trio.current_time(), self._opened_at.setdefault(key, deque(maxlen=a_minute))
        if len(opened) == a_minute and now - opened[0] < MINUTE_S:
            wait_ms = max(1, round((MINUTE_S - (now - opened[0])) * 1000))
            raise NotAdmitted("rate_limit_exceeded", f"This key may open {a_minute} sessions a minute.", wait_ms)
        opened.append(now)

    def allows_event(self, key: str) -> bool:
        """Whether ``key`` may send one more event now."""
        rate = self.limits.events_per_key_per_s
        if rate is None:
            return True
        now = trio.current_time()
        allowance = self._allowances.setdefault(key, _Allowance(rate, 2.0 * rate, now))
        return allowance.take(now)
