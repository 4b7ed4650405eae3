"""LaneEngine over anything that keeps requests open (``requests.py``): one request a lane, and the reasons to change it.

A lane is its history; a request is only a cache of it. ``covered`` says how much of the history the request's KV holds,
so the next chunk is always ``history[covered:]`` and the unit. Everything follows from that:

* after a unit, ``covered`` is one short of the history, because the engine forgot the last token: it goes out with the
  next unit;
* a truncated, parked or lost request is replaced by a new one with ``covered`` 0, which the prefix cache makes cheap;
* a slide makes the successor request over the shorter history while the old one serves on (make before break), and the
  swap is an assignment between two units; what was said meanwhile lies behind the successor's ``covered``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import attrs
import numpy as np

from gpu_runtime.engines.history import LaneHistory
from gpu_runtime.engines.opened import Opened, OpenRequests
from gpu_runtime.engines.port import (
    Embeddings,
    EngineLimits,
    EngineLost,
    EngineStatistics,
    Fed,
    LaneError,
    Part,
    Said,
    Slid,
    Unit,
    UnitEnd,
    Window,
)
from gpu_runtime.engines.prefills import NO_TURN, Prefills, Turn
from gpu_runtime.engines.requests import RequestEngine, Sampling
from gpu_runtime.engines.times import Rate, TimesRecorder
from gpu_runtime.tallies import added

SLIDE_PIECE_TOKENS = 64
"""A successor is prefilled in pieces of so many tokens, so that no step of the engine holds up the units that run. So few
ride along with a decoding step: reading the weights takes longer than computing them."""

PREFILLS_AT_ONCE = 4
"""Slides, and lanes that are new to the engine, for the same reason. Others wait: a lane's window leaves it room to go on
meanwhile. Not 1: a piece takes three steps from the call to its answer, and slides that fall behind make lanes longer, which
makes every step longer."""

SLIDE_DUE_S = 10.0
"""A slide is due so long after it began: those who wait for their lane to be opened go first until then."""

STALL_S = 60.0
"""A request of which nothing came for so long is given up. Units last a second, and a long prompt's prefill tens of them."""


@attrs.define(eq=False)
class _Successor:
    history: LaneHistory
    slid: Slid
    opened: Opened
    task: asyncio.Task[None]


@attrs.define(eq=False)
class _Run:
    """A unit on its way."""

    opened: Opened | None = None
    """Once it has chosen its request."""
    pushed: bool = False
    """The request computes its chunk, or has, as far as we know."""
    said: int = 0
    aborted: bool = False
    turn: Turn = NO_TURN
    """To compute its prompt, where that is a long one."""


@attrs.define(eq=False)
class _Lane:
    name: str
    history: LaneHistory
    known: int = 0
    """So much of the history was computed here before: a new request finds it in the prefix cache, as a rule."""
    opened: Opened | None = None
    run: _Run | None = None
    successor: _Successor | None = None

    @property
    def held(self) -> Opened | None:
        """The request to go on with; None when there is none, or it was parked."""
        return None if self.opened is None or self.opened.closed else self.opened


class StreamedLanes:
    """See LaneEngine. ``window`` None: lanes are not slid by themselves, and end with ``lane_full``. ``stall_s``: how long
    an engine may take for the next token before that unit ends with ``lane_stalled``. ``slide_piece_tokens``: how much of a
    successor's history one step computes."""

    def __init__(
        self,
        engine: RequestEngine,
        window: Window | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        stall_s: float = STALL_S,
        slide_piece_tokens: int = SLIDE_PIECE_TOKENS,
        prefills_at_once: int = PREFILLS_AT_ONCE,
    ) -> None:
        limits = engine.limits
        if window is not None and not 0 < window.low < window.high <= limits.lane_tokens_max:
            raise ValueError(f"a window of {window.low} to {window.high} tokens in lanes of {limits.lane_tokens_max}")
        self._engine = engine
        self._window = window
        self._clock_ns = clock_ns
        self._slide_piece_tokens = slide_piece_tokens
        self._lanes: dict[str, _Lane] = {}
        self._requests = OpenRequests(engine, clock_ns, stall_s, self._count)
        self._prefills = Prefills(prefills_at_once)
        self._counts = EngineStatistics()
        self._unit_times = TimesRecorder()
        self._first_times = TimesRecorder()
        self._said = Rate()

    @property
    def limits(self) -> EngineLimits:
        """See LaneEngine."""
        return self._engine.limits

    async def open(
        self,
        lane: str,
        prompt: Sequence[Part],
        heard: Sequence[Sequence[Part]] = (),
        *,
        warm: bool = True,
        due_ns: int = 0,
    ) -> None:
        """See LaneEngine."""
        if lane in self._lanes:
            raise LaneError("lane_exists", "a lane of that name is open")
        for parts in (prompt, *heard):
            self._check_parts(parts)
        history = LaneHistory(prompt)
        if not history.tokens:
            raise LaneError("bad_unit", "a lane's prompt has one token at least")
        for parts in heard:
            history.begin_unit(parts)
        if history.tokens >= self.limits.lane_tokens_max:
            raise LaneError("lane_full", f"{history.tokens} tokens, a lane holds {self.limits.lane_tokens_max}")
        state = self._lanes[lane] = _Lane(lane, history)
        if warm:
            await self._warm_lane(state, due_ns)

    async def feed(self, lane: str, unit: Unit) -> AsyncGenerator[Fed, None]:
        """See LaneEngine."""
        fed_ns = self._clock_ns()
        state = self._lane(lane)
        if state.run is not None:
            raise LaneError("lane_busy", "a unit is running")
        self._check_parts(unit.parts)
        if unit.max_new_tokens < 1:
            raise LaneError("bad_unit", "a unit decodes one token at least")
        run = state.run = _Run()
        try:
            slid = await self._fit(state, run, unit)
            if not run.aborted:
                async with aclosing(self._decode(state, run, unit, slid, fed_ns)) as events:
                    async for event in events:
                        yield event
            if run.aborted:
                now_ns = self._clock_ns()
                yield UnitEnd("aborted", state.history.tokens, 0, False, slid, (("fed", fed_ns), ("done", now_ns)))
        except LaneError:
            self._count(failed=1)
            run.pushed = False  # nobody knows what the request holds
            raise
        except EngineLost:
            run.pushed = False
            raise
        finally:
            run.turn.leave()
            if state.run is run:  # left in mid-unit
                state.run = None
                await self._stop(state, run)

    async def abort(self, lane: str) -> None:
        """See LaneEngine."""
        state = self._lane(lane)
        run, state.run = state.run, None
        if run is not None:
            run.aborted = True
            await self._stop(state, run)

    async def truncate(self, lane: str, tokens: int, *, warm: bool = False) -> None:
        """See LaneEngine."""
        state = self._lane(lane)
        if not 0 < tokens <= state.history.tokens:
            raise LaneError("bad_position", f"position {tokens} in a lane of {state.history.tokens} tokens")
        await self.abort(lane)
        await self._drop_successor(state)
        if tokens < state.history.tokens:
            rewinds = self._engine.rewinds and not state.history.splits(tokens)
            state.history.truncate(tokens)
            state.known = min(state.known, tokens)
            self._count(truncated=1)
            held = state.held
            if held is not None and held.covered > tokens:
                if rewinds:
                    held.covered, held.rewound = tokens, True
                else:
                    await self._discard(state, held)
        if warm and state.held is None:
            await self._warm_lane(state, 0)

    async def slide(self, lane: str, keep_tokens: int) -> None:
        """See LaneEngine."""
        state = self._lane(lane)
        if state.run is not None:
            raise LaneError("lane_busy", "a unit is running")
        self._begin_slide(state, keep_tokens)

    async def close(self, lane: str) -> None:
        """See LaneEngine."""
        if lane in self._lanes:
            state = self._lanes[lane]
            await self.abort(lane)
            await self._drop_successor(state)
            await self._discard(state, state.opened)
            self._lanes.pop(lane, None)

    def history_tokens(self, lane: str) -> int:
        """See LaneEngine."""
        return self._lane(lane).history.tokens

    def statistics(self) -> EngineStatistics:
        """See LaneEngine."""
        return attrs.evolve(
            self._counts,
            lanes_open=len(self._lanes),
            lanes_parked=sum(state.held is None for state in self._lanes.values()),
            units_running=sum(state.run is not None for state in self._lanes.values()),
            kv_tokens_held=self._requests.tokens_held,
            kv_used=self._engine.kv_used(),
            tokens_per_s=self._said.per_s(self._clock_ns()),
            unit_ms=self._unit_times.times(),
            first_token_ms=self._first_times.times(),
        )

    async def wait_lost(self) -> str:
        """See LaneEngine."""
        return await self._engine.wait_lost()

    async def shutdown(self) -> None:
        """See LaneEngine."""
        for state in list(self._lanes.values()):
            await self._drop_successor(state)
        await self._engine.shutdown()
        self._lanes.clear()

    # --- one unit --------------------------------------------------------------------------------------------------

    async def _decode(
        self, state: _Lane, run: _Run, unit: Unit, slid: Slid | None, fed_ns: int
    ) -> AsyncGenerator[Fed, None]:
        history = state.history
        run.turn = self._turn(history.tokens + unit.tokens - state.known, unit.due_ns)
        await self._prefills.take(run.turn)
        if run.aborted:
            return
        opened, reopened = await self._opened_for(state, run, history.tokens + unit.tokens + unit.max_new_tokens)
        if run.aborted:
            return
        if opened.covered == history.tokens and not unit.tokens:
            raise LaneError("bad_unit", "nothing came in, and nothing is left to go on from")
        history.begin_unit(unit.parts)
        chunk = history.parts(opened.covered)
        started_ns = first_ns = self._clock_ns()
        cached = 0
        finish = ""
        sampling = Sampling(unit.max_new_tokens, unit.stop_tokens, unit.temperature, unit.repetition_penalty)
        run.pushed = True
        async with aclosing(self._requests.chunk(opened, chunk, sampling)) as pieces:
            async for piece in pieces:
                if run.aborted:
                    return
                now_ns = self._clock_ns()
                run.turn.leave()
                cached = cached or piece.cached_tokens
                finish = piece.finish
                if piece.ids:
                    if not run.said:
                        first_ns = now_ns
                        self._first_times.add(first_ns - fed_ns)
                    run.said += len(piece.ids)
                    self._said.add(now_ns, len(piece.ids))
                    history.say(piece.ids)
                    yield Said(piece.ids, now_ns)
                    if run.aborted:
                        return
        opened.covered = history.tokens - 1
        state.known = history.tokens
        self._requests.rest(opened, history.tokens)
        done_ns = self._clock_ns()
        self._unit_times.add(done_ns - fed_ns)
        self._count(units_done=1, tokens_in=unit.tokens, tokens_out=run.said)
        if reopened:
            self._count(prefix_tokens_asked=history.tokens - run.said, prefix_tokens_cached=cached)
        state.run = None
        if self._window is not None and history.tokens > self._window.high and state.successor is None:
            self._begin_slide(state, self._window.low)
        stages = (("fed", fed_ns), ("started", started_ns), ("first_token", first_ns), ("done", done_ns))
        yield UnitEnd(finish, history.tokens, cached if reopened else 0, reopened, slid, stages)

    async def _fit(self, state: _Lane, run: _Run, unit: Unit) -> Slid | None:
        """Before a unit: let a successor take over if it is ready, or has to be."""
        wanted = unit.tokens + unit.max_new_tokens
        full = state.history.tokens + wanted > self.limits.lane_tokens_max
        successor = state.successor
        if successor is None:
            if not full:
                return None
            if self._window is None:
                raise self._full(state, wanted)
            self._count(slides_waited_for=1)
            successor = self._begin_slide(state, self._window.low)
        elif not successor.task.done() and full:
            self._count(slides_waited_for=1)
        if not successor.task.done():
            if not full:
                return None
            await asyncio.wait({successor.task})
            if run.aborted:
                return None
        slid = await self._take_over(state, successor)
        if state.history.tokens + wanted > self.limits.lane_tokens_max:
            raise self._full(state, wanted)
        return slid

    def _full(self, state: _Lane, wanted: int) -> LaneError:
        return LaneError(
            "lane_full",
            f"{state.history.tokens} tokens and a unit of {wanted}, a lane holds {self.limits.lane_tokens_max}",
        )

    # --- the slide -------------------------------------------------------------------------------------------------

    def _begin_slide(self, state: _Lane, keep_tokens: int) -> _Successor:
        if state.successor is not None:
            return state.successor
        history, slid = state.history.slid(keep_tokens)
        opened = self._requests.new(state.name)
        task = asyncio.create_task(self._warm_successor(opened, history), name=f"slide {state.name}")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # who takes over asks again
        state.successor = _Successor(history, slid, opened, task)
        return state.successor

    async def _warm_successor(self, opened: Opened, history: LaneHistory) -> None:
        turn = self._prefills.turn(self._clock_ns() + round(SLIDE_DUE_S * 1e9))
        try:
            await self._prefills.take(turn)
            await self._requests.warm(opened, history, self._slide_piece_tokens, turn)
        finally:
            turn.leave()

    async def _take_over(self, state: _Lane, successor: _Successor) -> Slid | None:
        state.successor = None
        failure = successor.task.exception()
        if failure is not None:
            await self._discard(state, successor.opened)
            if isinstance(failure, LaneError):
                return None  # the old one serves on; the next unit tries again
            raise failure
        before = state.history
        state.known = successor.history.tokens
        successor.history.append_from(before, successor.slid.tokens_before)
        await self._discard(state, state.opened)
        state.history = successor.history
        # It may have been parked while it waited: then its history is all that it brings.
        state.opened = None if successor.opened.closed else successor.opened
        self._count(slid=1)
        return Slid(successor.slid.units_dropped, before.tokens, state.history.tokens)

    async def _drop_successor(self, state: _Lane) -> None:
        successor, state.successor = state.successor, None
        if successor is not None:
            successor.task.cancel()
            await asyncio.wait({successor.task})
            await self._discard(state, successor.opened)

    # --- requests --------------------------------------------------------------------------------------------------

    async def _opened_for(self, state: _Lane, run: _Run, tokens: int) -> tuple[Opened, bool]:
        """The lane's request with room for ``tokens``, and whether it is a new one. It is busy from here on."""
        reopened = False
        while True:
            opened = state.held
            if opened is None:
                opened, reopened = self._requests.new(state.name), True
                state.opened = opened
            run.opened = opened
            if await self._requests.enter(opened, tokens) or run.aborted:
                return opened, reopened

    async def _warm_lane(self, state: _Lane, due_ns: int) -> None:
        state.opened = opened = self._requests.new(state.name)
        state.run = run = _Run(opened, turn=self._turn(state.history.tokens - state.known, due_ns))
        try:
            await self._prefills.take(run.turn)
            await self._requests.warm(opened, state.history, self.limits.lane_tokens_max, run.turn)
            state.known = max(state.known, opened.covered)
        finally:
            run.turn.leave()
            if state.run is run:
                state.run = None
                if opened.busy:
                    await self._discard(state, opened)

    def _turn(self, unknown_tokens: int, due_ns: int) -> Turn:
        """What most units bring is computed beside the others' at once."""
        return self._prefills.turn(due_ns or self._clock_ns()) if unknown_tokens > self._slide_piece_tokens else NO_TURN

    async def _stop(self, state: _Lane, run: _Run) -> None:
        """End a unit that runs. Where requests go back, the lane keeps its own."""
        run.turn.leave()
        opened = run.opened
        if opened is not None and run.pushed and not opened.closed and self._engine.rewinds:
            # The KV of the last token that was said may not be there yet.
            self._requests.interrupt(opened, state.history.tokens - bool(run.said))
        else:
            await self._discard(state, opened)

    async def _discard(self, state: _Lane, opened: Opened | None) -> None:
        """A request is of no use any more."""
        if opened is None:
            return
        if state.opened is opened:
            state.opened = None
        await self._requests.discard(opened)

    # --- small things ----------------------------------------------------------------------------------------------

    def _lane(self, name: str) -> _Lane:
        state = self._lanes.get(name)
        if state is None:
            raise LaneError("lane_unknown", "there is no such lane")
        return state

    def _check_parts(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, Embeddings):
                width = self.limits.embedding_width
                rows = part.rows
                if rows.ndim != 2 or rows.shape[1] != width or rows.dtype != np.float32:
                    raise LaneError(
                        "bad_embedding", f"{rows.dtype}{rows.shape}, this engine takes float32 [tokens, {width}]"
                    )
                if not np.isfinite(rows).all():
                    raise LaneError("bad_embedding", "an embedding is not a number, or infinite")
            elif part.ids and min(part.ids) < 0:
                raise LaneError("bad_unit", "a negative token")

    def _count(self, **more: int) -> None:
        self._counts = added(self._counts, **more)
