"""Units in, tokens out: a lane engine behind the unit scheduler, in one asyncio event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import attrs

from core.session.time_units import NS_PER_MS
from gpu_runtime.engines.port import Fed, LaneEngine, LaneError, Part, Tokens, Unit, UnitEnd
from gpu_runtime.engines.snapshot import LaneSnapshot
from gpu_runtime.scheduler.units import Admission, SchedulerStatistics, Ticket, UnitScheduler

CALIBRATION_LANE = "warm-up"
ADMIT_EVERY_S = 0.25
"""How often those who wait for admission are looked at: the measured unit time may have fallen."""


@attrs.frozen
class WarmUp:
    """``sessions`` lanes of ``history_tokens`` are fed ``units`` units at once, before anybody is let in."""

    sessions: int
    history_tokens: int
    unit: Unit
    units: int = 2


@attrs.define(eq=False)
class _Waiting:
    """A unit that may not run yet. ``over`` is set when it may, or when it never will."""

    ticket: Ticket
    over: asyncio.Event = attrs.field(factory=asyncio.Event)


class UnitServer:
    """Sessions open one lane each, named as they are. The scheduler decides whose unit starts when."""

    def __init__(
        self, engine: LaneEngine, scheduler: UnitScheduler, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._clock_ns = clock_ns
        self._units: dict[int, _Waiting] = {}
        """By the ticket's serial."""
        self._admitted: dict[str, asyncio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None
        """For units that gather."""

    async def open(
        self,
        session: str,
        prompt: Sequence[Part],
        heard: Sequence[Sequence[Part]] = (),
        *,
        kv_tokens: int,
        due_ns: int = 0,
    ) -> None:
        """Admit the session (wait for it, where the scheduler queues) and open its lane. ``due_ns``: the deadline of its next
        unit, by the server's clock; of many lanes that are opened at once, the earliest due is first. 0: a unit from now.
        Raises LaneError with the code of the refusal or of the engine, EngineLost. However it fails, the session's place
        is free again."""
        due_ns = due_ns or self._clock_ns() + self._scheduler.options.unit_ms * NS_PER_MS
        await self.admit(session, kv_tokens)
        opened = False
        try:
            await self._engine.open(session, prompt, heard, due_ns=due_ns)
            opened = True
        except asyncio.CancelledError:
            await self._engine.close(session)  # it may be half open
            raise
        finally:
            if not opened:
                self.leave(session)

    async def admit(self, session: str, kv_tokens: int) -> None:
        """Let the session in, or wait for it where the scheduler queues; ``open`` without the lane, for those who keep lanes
        longer than they feed them. Raises LaneError with the code of the refusal."""
        verdict = self._scheduler.admit(session, kv_tokens)
        if verdict is Admission.QUEUED:
            await self._wait_for_admission(session)
        elif verdict is not Admission.ADMITTED:
            raise LaneError(verdict.value, "this engine can take no more sessions now")

    async def feed(self, session: str, unit: Unit) -> AsyncGenerator[Fed, None]:
        """As LaneEngine.feed, in the scheduler's order. Raises LaneError; scheduler.units.Refused."""
        ticket = self._scheduler.arrive(session, self._clock_ns())
        waiting = self._units[ticket.serial] = _Waiting(ticket)
        self._start_next()
        try:
            await waiting.over.wait()
            if ticket.cancelled:
                raise LaneError("lane_unknown", "the session has left")
            unit = attrs.evolve(unit, due_ns=ticket.deadline_ns)
            async with aclosing(self._engine.feed(session, unit)) as events:
                async for event in events:
                    if isinstance(event, UnitEnd):
                        self._finish(ticket)
                    yield event
        finally:
            self._finish(ticket)

    async def truncate(self, session: str, tokens: int) -> None:
        """As LaneEngine.truncate, made warm at once."""
        await self._engine.truncate(session, tokens, warm=True)

    async def close(self, session: str) -> None:
        """Close the lane and let the next session in. Unknown ones are ignored."""
        self.leave(session)
        await self._engine.close(session)

    def statistics(self) -> SchedulerStatistics:
        """Now."""
        return self._scheduler.statistics()

    def snapshot(self) -> LaneSnapshot:
        """Now: the lanes' figures and the scheduler's."""
        return LaneSnapshot(self._engine.statistics(), self._scheduler.statistics())

    async def warm_up(self, plan: WarmUp, progress: Callable[[float], None]) -> None:
        """Measure the configured concurrency, so that admission knows it before the first session comes. ``progress`` gets
        the fraction done. Raises LaneError, EngineLost."""
        names = [f"{CALIBRATION_LANE}-{number}" for number in range(plan.sessions)]
        steps = plan.units + 1
        for number, name in enumerate(names):
            # Prompts that differ from the first token on: a shared prefix would be computed once.
            prompt = Tokens(tuple(1 + (number * 31 + place * 7) % 1_000 for place in range(plan.history_tokens)))
            await self._engine.open(name, [prompt])
            progress((number + 1) / len(names) / steps)
        for step in range(plan.units):
            for took_ns in await asyncio.gather(*(self._time(name, plan.unit) for name in names)):
                if step:  # the first round compiles and allocates
                    self._scheduler.calibrate(plan.sessions, took_ns)
            progress((step + 2) / steps)
        for name in names:
            await self._engine.close(name)

    async def _time(self, lane: str, unit: Unit) -> int:
        began_ns = self._clock_ns()
        async with aclosing(self._engine.feed(lane, unit)) as events:
            async for _ in events:
                pass
        return self._clock_ns() - began_ns

    async def _wait_for_admission(self, session: str) -> None:
        admitted = self._admitted[session] = asyncio.Event()
        try:
            while not admitted.is_set():
                try:
                    async with asyncio.timeout(ADMIT_EVERY_S):
                        await admitted.wait()
                except TimeoutError:
                    self._admit_waiting()
        except asyncio.CancelledError:
            self.leave(session)
            raise
        finally:
            del self._admitted[session]

    def _admit_waiting(self) -> None:
        for session in self._scheduler.admit_waiting():
            self._admitted[session].set()

    def leave(self, session: str) -> None:
        """Its place is free, its lane stays as it is. Unknown ones are ignored."""
        self._scheduler.leave(session)
        for waiting in self._units.values():
            if waiting.ticket.cancelled:
                waiting.over.set()
        self._admit_waiting()

    def _start_next(self) -> None:
        now_ns = self._clock_ns()
        while (ticket := self._scheduler.start(now_ns)) is not None:
            self._units[ticket.serial].over.set()
        due_ns = self._scheduler.due_ns()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ns is not None and due_ns > now_ns:
            self._timer = asyncio.get_running_loop().call_later((due_ns - now_ns) / 1e9, self._start_next)

    def _finish(self, ticket: Ticket) -> None:
        """Once, however it ended."""
        if self._units.pop(ticket.serial, None) is None:
            return
        if ticket.started_ns:
            self._scheduler.done(ticket, self._clock_ns())
        else:
            self._scheduler.cancel(ticket)
        self._start_next()
