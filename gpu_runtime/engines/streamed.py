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
from gpu_runtime.engines.port import (
    Embeddings,
    EngineLimits,
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
from gpu_runtime.engines.requests import PREFILL, Request, RequestEngine, Sampling
from gpu_runtime.engines.room import Hold, Room

SLIDE_PIECE_TOKENS = 512
"""A successor is prefilled in pieces of so many tokens, so that no step of the engine holds up the units that run."""

SLIDES_AT_ONCE = 1
"""For the same reason. Others wait: a lane's window leaves it room to go on meanwhile."""


@attrs.define(eq=False, kw_only=True)
class _Opened(Hold):
    """A request, what it holds, and how much of its lane's history it covers."""

    request: Request
    covered: int = 0
    closed: bool = False
    """It was parked, dropped or aborted: of no use any more, to whoever still has it in hand."""


@attrs.define(eq=False)
class _Successor:
    history: LaneHistory
    slid: Slid
    opened: _Opened
    task: asyncio.Task[None]


@attrs.define(eq=False)
class _Run:
    """A unit on its way."""

    opened: _Opened | None = None
    """Once it has chosen its request."""
    aborted: bool = False


@attrs.define(eq=False)
class _Lane:
    name: str
    history: LaneHistory
    opened: _Opened | None = None
    run: _Run | None = None
    successor: _Successor | None = None


class StreamedLanes:
    """See LaneEngine. ``window`` None: lanes are not slid by themselves, and end with ``lane_full``."""

    def __init__(
        self, engine: RequestEngine, window: Window | None = None, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        limits = engine.limits
        if window is not None and not 0 < window.low < window.high <= limits.lane_tokens_max:
            raise ValueError(f"a window of {window.low} to {window.high} tokens in lanes of {limits.lane_tokens_max}")
        self._engine = engine
        self._window = window
        self._clock_ns = clock_ns
        self._lanes: dict[str, _Lane] = {}
        self._room: Room[_Opened] = Room(limits.kv_tokens // limits.block_tokens, limits.requests_max)
        self._waiting: list[asyncio.Future[None]] = []
        self._sliding = asyncio.Semaphore(SLIDES_AT_ONCE)
        self._serial = 0
        self._counts = EngineStatistics()

    @property
    def limits(self) -> EngineLimits:
        """See LaneEngine."""
        return self._engine.limits

    async def open(
        self, lane: str, prompt: Sequence[Part], heard: Sequence[Sequence[Part]] = (), *, warm: bool = True
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
            await self._warm_lane(state)

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
            raise
        finally:
            if state.run is run:  # left in mid-unit
                state.run = None
                await self._discard(state, run.opened)

    async def abort(self, lane: str) -> None:
        """See LaneEngine."""
        state = self._lane(lane)
        run, state.run = state.run, None
        if run is not None:
            run.aborted = True
            await self._discard(state, run.opened)

    async def truncate(self, lane: str, tokens: int, *, warm: bool = False) -> None:
        """See LaneEngine."""
        state = self._lane(lane)
        if not 0 < tokens <= state.history.tokens:
            raise LaneError("bad_position", f"position {tokens} in a lane of {state.history.tokens} tokens")
        await self.abort(lane)
        await self._drop_successor(state)
        if tokens < state.history.tokens:
            state.history.truncate(tokens)
            self._count(truncated=1)
            if state.opened is not None and state.opened.covered > tokens:
                await self._discard(state, state.opened)
        if warm and state.opened is None:
            await self._warm_lane(state)

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
            lanes_parked=sum(state.opened is None for state in self._lanes.values()),
            units_running=sum(state.run is not None for state in self._lanes.values()),
            kv_tokens_held=self._room.blocks_held * self.limits.block_tokens,
            kv_used=self._engine.kv_used(),
        )

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
        opened, reopened = await self._opened_for(state, run, history.tokens + unit.tokens + unit.max_new_tokens)
        if run.aborted:
            return
        if opened.covered == history.tokens and not unit.tokens:
            raise LaneError("bad_unit", "nothing came in, and nothing is left to go on from")
        history.begin_unit(unit.parts)
        chunk = history.parts(opened.covered)
        started_ns = first_ns = self._clock_ns()
        cached = said = 0
        finish = ""
        sampling = Sampling(unit.max_new_tokens, unit.stop_tokens, unit.temperature, unit.repetition_penalty)
        async with aclosing(opened.request.push(chunk, sampling)) as pieces:
            async for piece in pieces:
                if run.aborted:
                    return
                now_ns = self._clock_ns()
                cached = cached or piece.cached_tokens
                finish = piece.finish
                if piece.ids:
                    first_ns = first_ns if said else now_ns
                    said += len(piece.ids)
                    history.say(piece.ids)
                    yield Said(piece.ids, now_ns)
                    if run.aborted:
                        return
        opened.covered = history.tokens - 1
        self._room.rest(opened, self._blocks(history.tokens))
        self._count(units_done=1, tokens_in=unit.tokens, tokens_out=said)
        if reopened:
            self._count(prefix_tokens_asked=history.tokens - said, prefix_tokens_cached=cached)
        state.run = None
        self._wake()
        if self._window is not None and history.tokens > self._window.high and state.successor is None:
            self._begin_slide(state, self._window.low)
        stages = (("fed", fed_ns), ("started", started_ns), ("first_token", first_ns), ("done", self._clock_ns()))
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
        opened = self._new(state)
        task = asyncio.create_task(self._warm_successor(opened, history), name=f"slide {state.name}")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # who takes over asks again
        state.successor = _Successor(history, slid, opened, task)
        return state.successor

    async def _warm_successor(self, opened: _Opened, history: LaneHistory) -> None:
        async with self._sliding:
            await self._warm(opened, history, SLIDE_PIECE_TOKENS)

    async def _take_over(self, state: _Lane, successor: _Successor) -> Slid | None:
        state.successor = None
        failure = successor.task.exception()
        if failure is not None:
            await self._discard(state, successor.opened)
            if isinstance(failure, LaneError):
                return None  # the old one serves on; the next unit tries again
            raise failure
        before = state.history
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

    # --- requests and their room -----------------------------------------------------------------------------------

    def _new(self, state: _Lane) -> _Opened:
        self._serial += 1
        self._count(requests_opened=1)
        return _Opened(request=self._engine.request(f"{state.name}/{self._serial}"))

    async def _opened_for(self, state: _Lane, run: _Run, tokens: int) -> tuple[_Opened, bool]:
        """The lane's request with room for ``tokens``, and whether it is a new one. It is busy from here on."""
        reopened = False
        while True:
            if state.opened is None:
                state.opened, reopened = self._new(state), True
            run.opened = opened = state.opened
            if await self._enter(opened, tokens) or run.aborted:
                return opened, reopened

    async def _warm_lane(self, state: _Lane) -> None:
        state.opened = self._new(state)
        state.run = run = _Run(state.opened)
        try:
            await self._warm(state.opened, state.history, self.limits.lane_tokens_max)
        finally:
            if state.run is run:
                state.run = None
                if state.opened is not None and state.opened.busy:
                    await self._discard(state, state.opened)

    async def _warm(self, opened: _Opened, history: LaneHistory, piece_tokens: int) -> None:
        """Compute the KV of a whole history, in pieces. Less of it when the request is closed meanwhile."""
        while opened.covered < history.tokens:
            end = min(opened.covered + piece_tokens, history.tokens)
            if not await self._enter(opened, end + 1):
                return
            async with aclosing(opened.request.push(history.parts(opened.covered, end), PREFILL)) as pieces:
                async for piece in pieces:
                    if not opened.covered:
                        self._count(prefix_tokens_asked=end, prefix_tokens_cached=piece.cached_tokens)
            if opened.closed:
                return
            opened.covered = end
            self._room.rest(opened, self._blocks(end))
            self._wake()

    async def _enter(self, opened: _Opened, tokens: int) -> bool:
        """Wait for room, and park whom it takes. False: it was closed meanwhile, and holds nothing."""
        while not opened.closed:
            try:
                parked = self._room.enter(opened, self._blocks(tokens), self._clock_ns())
            except ValueError as error:
                raise LaneError("lane_full", str(error)) from error
            if parked is None:
                waiter = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
                await waiter
                continue
            await self._park(parked)
            if opened.closed:
                self._room.leave(opened)
                self._wake()
            return not opened.closed
        return False

    async def _park(self, parked: Sequence[_Opened]) -> None:
        for opened in parked:
            opened.closed = True
        for state in self._lanes.values():
            if state.opened is not None and state.opened.closed:
                state.opened = None
        self._count(parked=len(parked))
        for opened in parked:
            await opened.request.close()

    async def _discard(self, state: _Lane, opened: _Opened | None) -> None:
        """A request is of no use any more."""
        if opened is None:
            return
        if state.opened is opened:
            state.opened = None
        opened.closed = True
        await opened.request.close()
        self._room.leave(opened)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    # --- small things ----------------------------------------------------------------------------------------------

    def _lane(self, name: str) -> _Lane:
        state = self._lanes.get(name)
        if state is None:
            raise LaneError("lane_unknown", "there is no such lane")
        return state

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

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
        self._counts = attrs.evolve(
            self._counts, **{name: getattr(self._counts, name) + value for name, value in more.items()}
        )
