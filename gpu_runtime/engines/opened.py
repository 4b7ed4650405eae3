"""Requests that lanes hold: entered in the room before they compute, given up when the engine falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import attrs

from gpu_runtime.engines.history import LaneHistory
from gpu_runtime.engines.port import LaneError, Part
from gpu_runtime.engines.prefills import Turn
from gpu_runtime.engines.requests import PREFILL, Piece, Request, RequestEngine, Sampling
from gpu_runtime.engines.room import Hold, Room

PATIENCE_TOKENS = 2_048
"""For each so many of a prompt, its first token may take as long again: others speak meanwhile."""


@attrs.define(eq=False, kw_only=True)
class Opened(Hold):
    """A request, what it holds, and how much of its lane's history it covers."""

    request: Request
    covered: int = 0
    rewound: bool = False
    """What it holds behind ``covered`` is not the lane's any more: to be forgotten with the next chunk."""
    closed: bool = False
    """It was parked, dropped or aborted: of no use any more, to whoever still has it in hand."""


class OpenRequests:
    """Makes them, lets them compute, closes them. ``count`` takes additions to EngineStatistics by name."""

    def __init__(
        self, engine: RequestEngine, clock_ns: Callable[[], int], stall_s: float, count: Callable[..., None]
    ) -> None:
        limits = engine.limits
        self._engine = engine
        self._clock_ns = clock_ns
        self._stall_s = stall_s
        self._count = count
        self._block_tokens = limits.block_tokens
        self._room: Room[Opened] = Room(limits.kv_tokens // limits.block_tokens, limits.requests_max)
        self._waiting: list[asyncio.Future[None]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._serial = 0

    @property
    def tokens_held(self) -> int:
        """KV, in whole blocks."""
        return self._room.blocks_held * self._block_tokens

    def new(self, lane: str) -> Opened:
        """It holds nothing yet."""
        self._serial += 1
        self._count(requests_opened=1)
        return Opened(request=self._engine.request(f"{lane}/{self._serial}"))

    async def enter(self, opened: Opened, tokens: int) -> bool:
        """Wait for room, and park whom it takes; it is busy from here on. False: it was closed meanwhile, and holds
        nothing. Raises LaneError (lane_full) when there can never be so much room."""
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

    def rest(self, opened: Opened, tokens: int) -> None:
        """Its chunk is done, and it holds so much."""
        self._room.rest(opened, self._blocks(tokens))
        self._wake()

    async def chunk(self, opened: Opened, parts: Sequence[Part], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """One chunk's pieces. Raises LaneError (lane_stalled) when the engine falls silent: whatever the reason is, it must
        not become this lane's silence, and a place that is never given back."""
        keep_tokens = opened.covered if opened.rewound else None
        opened.rewound = False
        patience_s = self._stall_s * (1 + sum(map(len, parts)) // PATIENCE_TOKENS)
        async with aclosing(opened.request.push(parts, sampling, keep_tokens)) as pieces:
            while True:
                try:
                    async with asyncio.timeout(patience_s):
                        piece = await anext(pieces, None)
                except TimeoutError:
                    self._count(stalled=1)
                    raise LaneError("lane_stalled", f"the engine gave nothing for {patience_s:g} s") from None
                if piece is None:
                    return
                patience_s = self._stall_s
                yield piece

    def interrupt(self, opened: Opened, covered: int) -> None:
        """The chunk that it computes is to end now, and of what it holds the lane keeps ``covered`` tokens. The others'
        blocks are its own until its next chunk."""
        opened.request.interrupt()
        opened.covered, opened.rewound = covered, True
        self._room.rest(opened, opened.blocks)
        self._wake()

    async def warm(self, opened: Opened, history: LaneHistory, piece_tokens: int, turn: Turn) -> None:
        """Compute the KV of a whole history, in pieces, between which ``turn`` gives way. Less of it when the request is
        closed meanwhile."""
        while opened.covered < history.tokens:
            await turn.give_way()
            end = min(opened.covered + piece_tokens, history.tokens)
            if not await self.enter(opened, end + 1):
                return
            fresh = not opened.covered
            async with aclosing(self.chunk(opened, history.parts(opened.covered, end), PREFILL)) as pieces:
                async for piece in pieces:
                    if fresh:
                        self._count(prefix_tokens_asked=end, prefix_tokens_cached=piece.cached_tokens)
            if opened.closed:
                return
            opened.covered = end
            self.rest(opened, end)

    async def discard(self, opened: Opened) -> None:
        """It is of no use any more."""
        opened.closed = True
        try:
            await opened.request.close()
        finally:  # a caller that is cancelled here must not take its room along
            self._room.leave(opened)
            self._wake()

    async def _park(self, parked: Sequence[Opened]) -> None:
        """Whoever waits for the room may be cancelled (a barge-in); the requests are closed all the same. One that stays open
        would keep blocks and a place that nobody knows of any more."""
        if not parked:
            return
        for opened in parked:
            opened.closed = True
        self._count(parked=len(parked))
        closing = [asyncio.create_task(opened.request.close()) for opened in parked]
        for task in closing:
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        await asyncio.wait(closing)
        for task in closing:
            task.result()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)
