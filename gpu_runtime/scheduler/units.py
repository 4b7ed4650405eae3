"""The unit scheduler: earliest deadline first over sessions, and admission by what was measured. Pure: time is an argument.

Each session sends a unit every ``unit_ms``; a unit that is not done when the next one is due is late, and the conversation
stutters. So a unit's deadline is its arrival plus the unit. Of the units that wait, the one with the earliest deadline
starts, one at a time a session, ``running_max`` at a time in all. Late units still run: the user's words are in them.

A step of the engine that takes new input beside what it decodes costs more than one that only decodes. Sessions at random
phases would make every step such a one. So when many units run, those that arrive within ``gather_ms`` start together: each
waits a little, and all are done sooner.

Admission has three bounds. By count; by KV tokens, since a lane that is always parked for another is recomputed with each
unit; and by time: the engine batches, so one more session makes every unit longer, and the unit that this predicts has to
fit. The prediction is linear through the measured 99th percentile, which is on the safe side, because a batch of twice the
size takes less than twice as long.
"""

from __future__ import annotations

import heapq
from collections import deque
from enum import Enum

import attrs

from core.session.time_units import NS_PER_MS
from gpu_runtime.engines.times import Times, TimesRecorder


class Admission(Enum):
    """What becomes of a session that wants in. The values of refusals are stable codes."""

    ADMITTED = "admitted"
    QUEUED = "queued"
    SESSIONS_FULL = "sessions_full"
    KV_FULL = "kv_full"
    TOO_SLOW = "too_slow"
    EXISTS = "session_exists"


class Refused(Exception):
    """This unit cannot be taken. ``code`` is stable: ``session_unknown``, ``lane_behind`` (too many units wait)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@attrs.frozen
class SchedulerOptions:
    """``kv_tokens``: what the engine can hold; 0 means that this is no bound."""

    unit_ms: int
    sessions_max: int
    running_max: int
    kv_tokens: int = 0
    waiting_max: int = 0
    """Sessions that may wait for admission; 0: whoever cannot come in now is refused."""
    backlog_max: int = 4
    """Units of one session that may wait. A session that is further behind than that will not catch up."""
    gather_ms: int = 0
    """Units start together, so many ms after the last that did. 0: each starts as soon as it may."""
    gather_from: int = 16
    """While fewer units run, nobody is made to wait."""
    load_max: float = 0.9
    """Which share of a unit's time the predicted unit may take."""
    sessions_min: int = 0
    """So many sessions are let in however long their units take."""
    measured_units: int = 512
    """How many of the last units count as measured."""


@attrs.define(order=True)
class Ticket:
    """A unit that waits or runs. Ordered by deadline, then by arrival."""

    deadline_ns: int
    serial: int
    session: str = attrs.field(order=False)
    arrived_ns: int = attrs.field(order=False)
    started_ns: int = attrs.field(default=0, order=False)
    cancelled: bool = attrs.field(default=False, order=False)


@attrs.frozen
class UnitReport:
    """What became of a unit. Times in ns."""

    session: str
    queued_ns: int
    took_ns: int
    """From arrival to its end."""
    late_ns: int
    """How far beyond its deadline; 0 when it made it."""


@attrs.frozen
class SchedulerStatistics:
    """The first four are now, the others count from the start. Percentiles are of the last ``measured_units``, in ms."""

    sessions: int
    sessions_waiting: int
    units_waiting: int
    units_running: int
    units_done: int
    deadline_misses: int
    refused: int
    unit_ms_p50: float
    unit_ms_p99: float
    queue_ms_p99: float
    queue_ms: Times
    """Of all units from the start: from arrival until the engine got them."""


@attrs.define
class _Session:
    kv_tokens: int
    waiting: deque[Ticket] = attrs.field(factory=deque)
    running: Ticket | None = None


class UnitScheduler:
    """Calls come from one thread, with times that never run backwards."""

    def __init__(self, options: SchedulerOptions) -> None:
        self.options = options
        self._sessions: dict[str, _Session] = {}
        self._queue: dict[str, int] = {}
        """Who waits for admission, in order, and the KV tokens that it wants."""
        self._ready: list[Ticket] = []
        """The first waiting unit of each session that runs none; a heap. Those of sessions that left are passed over."""
        self._running = 0
        self._serial = 0
        self._began_ns = -(1 << 62)
        """When units were last started."""
        self._done = 0
        self._misses = 0
        self._refused = 0
        self._took_ns: deque[int] = deque(maxlen=options.measured_units)
        self._queued_ns: deque[int] = deque(maxlen=options.measured_units)
        self._queue_times = TimesRecorder()
        self._measured_at = 0
        """With how many sessions the units above were measured: the most."""

    # --- sessions --------------------------------------------------------------------------------------------------

    def admit(self, session: str, kv_tokens: int) -> Admission:
        """``kv_tokens``: what its lane will hold at most. QUEUED ones come in with ``admit_waiting``."""
        if session in self._sessions or session in self._queue:
            return Admission.EXISTS
        verdict = self._verdict(kv_tokens)
        if verdict is Admission.ADMITTED and not self._queue:
            self._sessions[session] = _Session(kv_tokens)
            return verdict
        never = bool(self.options.kv_tokens) and kv_tokens > self.options.kv_tokens
        if len(self._queue) < self.options.waiting_max and not never:
            self._queue[session] = kv_tokens
            return Admission.QUEUED
        self._refused += 1
        return Admission.SESSIONS_FULL if verdict is Admission.ADMITTED else verdict

    def admit_waiting(self) -> list[str]:
        """Sessions that come in now, in the order of their asking. Ask after ``leave`` and from time to time."""
        came: list[str] = []
        for session, kv_tokens in list(self._queue.items()):
            if self._verdict(kv_tokens) is not Admission.ADMITTED:
                break
            del self._queue[session]
            self._sessions[session] = _Session(kv_tokens)
            came.append(session)
        return came

    def leave(self, session: str) -> None:
        """It is gone, with its waiting units; what runs of it still counts until ``done``. Unknown ones are ignored."""
        self._queue.pop(session, None)
        state = self._sessions.pop(session, None)
        if state is not None:
            for ticket in state.waiting:
                ticket.cancelled = True

    def predicted_ms(self, sessions: int) -> float:
        """The unit time to expect (99th percentile) with so many sessions; 0 while nothing was measured."""
        if not self._took_ns or not self._measured_at:
            return 0.0
        return _percentile(self._took_ns, 99) / NS_PER_MS * max(sessions / self._measured_at, 1.0)

    def calibrate(self, sessions: int, took_ns: int) -> None:
        """A unit was measured in a warm-up with so many sessions at once."""
        self._measured_at = max(self._measured_at, sessions)
        self._took_ns.append(took_ns)

    def _verdict(self, kv_tokens: int) -> Admission:
        options = self.options
        if len(self._sessions) >= options.sessions_max:
            return Admission.SESSIONS_FULL
        if options.kv_tokens:
            held = sum(state.kv_tokens for state in self._sessions.values())
            if held + kv_tokens > options.kv_tokens:
                return Admission.KV_FULL
        sessions = len(self._sessions) + 1
        if sessions > options.sessions_min and self.predicted_ms(sessions) > options.load_max * options.unit_ms:
            return Admission.TOO_SLOW
        return Admission.ADMITTED

    # --- units -----------------------------------------------------------------------------------------------------

    def arrive(self, session: str, now_ns: int) -> Ticket:
        """A unit came in. Raises Refused, and then it was not taken."""
        state = self._sessions.get(session)
        if state is None:
            raise Refused("session_unknown", "there is no such session")
        if len(state.waiting) >= self.options.backlog_max:
            self._refused += 1
            raise Refused("lane_behind", f"{len(state.waiting)} units of this session wait already")
        self._serial += 1
        ticket = Ticket(now_ns + self.options.unit_ms * NS_PER_MS, self._serial, session, now_ns)
        state.waiting.append(ticket)
        if state.running is None and len(state.waiting) == 1:
            heapq.heappush(self._ready, ticket)
        return ticket

    def start(self, now_ns: int) -> Ticket | None:
        """The unit to start now; None: none waits, or enough are running, or see ``due_ns``. Call until it gives None."""
        due_ns = self.due_ns()
        if due_ns is None or (now_ns < due_ns and now_ns != self._began_ns):
            return None
        while self._ready and self._running < self.options.running_max:
            ticket = heapq.heappop(self._ready)
            if ticket.cancelled:
                continue
            state = self._sessions[ticket.session]
            assert state.running is None
            assert state.waiting[0] is ticket
            state.waiting.popleft()
            state.running = ticket
            ticket.started_ns = self._began_ns = now_ns
            self._running += 1
            return ticket
        return None

    def due_ns(self) -> int | None:
        """When ``start`` has something to give: perhaps long ago, perhaps when others have gathered. None: not before the
        next arrival or end."""
        if not self._ready or self._running >= self.options.running_max:
            return None
        if not self.options.gather_ms or self._running < self.options.gather_from:
            return 0
        return self._began_ns + self.options.gather_ms * NS_PER_MS

    def cancel(self, ticket: Ticket) -> None:
        """A unit that waits is not wanted any more; one that runs is told to ``done``."""
        state = self._sessions.get(ticket.session)
        if state is None or ticket not in state.waiting:
            return
        first = state.waiting[0] is ticket
        state.waiting.remove(ticket)
        ticket.cancelled = True
        if first and state.waiting and state.running is None:
            heapq.heappush(self._ready, state.waiting[0])

    def done(self, ticket: Ticket, now_ns: int) -> UnitReport:
        """A unit that was started is over, however it ended."""
        self._running -= 1
        state = self._sessions.get(ticket.session)
        if state is not None and state.running is ticket:
            state.running = None
            if state.waiting:
                heapq.heappush(self._ready, state.waiting[0])
        report = UnitReport(
            ticket.session,
            ticket.started_ns - ticket.arrived_ns,
            now_ns - ticket.arrived_ns,
            max(now_ns - ticket.deadline_ns, 0),
        )
        self._done += 1
        self._misses += report.late_ns > 0
        self._measured_at = max(self._measured_at, len(self._sessions))
        self._took_ns.append(report.took_ns)
        self._queued_ns.append(report.queued_ns)
        self._queue_times.add(report.queued_ns)
        return report

    def statistics(self) -> SchedulerStatistics:
        """Now."""
        return SchedulerStatistics(
            sessions=len(self._sessions),
            sessions_waiting=len(self._queue),
            units_waiting=sum(len(state.waiting) for state in self._sessions.values()),
            units_running=self._running,
            units_done=self._done,
            deadline_misses=self._misses,
            refused=self._refused,
            unit_ms_p50=_percentile(self._took_ns, 50) / NS_PER_MS,
            unit_ms_p99=_percentile(self._took_ns, 99) / NS_PER_MS,
            queue_ms_p99=_percentile(self._queued_ns, 99) / NS_PER_MS,
            queue_ms=self._queue_times.times(),
        )


def _percentile(values: deque[int], percent: float) -> int:
    """The nearest rank; 0 for none."""
    if not values:
        return 0
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]
