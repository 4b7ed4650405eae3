"""A language model on the lanes of a token engine, behind the unit scheduler.

Each prompt goes on from the lane that shares the longest beginning with it: the next turn of a conversation computes its
new tokens only, and after a barge-in the lane is truncated to what was heard.

An answer is said in units of UNIT_TOKENS, each due UNIT_MS after the one before it ended. So many answers at once take
turns by their deadlines, and one that cannot be in time beside the others waits until one of those has ended.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import attrs

from core.ports.described import kind
from core.ports.runtime import ModelStatistics
from gpu_runtime.engines.port import EngineLost, LaneEngine, LaneError, Said, Tokens, Unit, UnitEnd
from gpu_runtime.engines.prefixes import Choice, Prefixes, common
from gpu_runtime.engines.snapshot import LaneSnapshot
from gpu_runtime.faults import tell_fault
from gpu_runtime.models.cascade.chat_tokenizer import ChatTokenizer
from gpu_runtime.models.cascade.meter import durations
from gpu_runtime.models.cascade.parts import Cancel, Cancelled, ChatMessage, OnText, PartFailed, Usage
from gpu_runtime.models.cascade.prompt import head_of, newest
from gpu_runtime.scheduler.server import UnitServer, WarmUp
from gpu_runtime.scheduler.units import SchedulerOptions, UnitScheduler

UNIT_TOKENS = 16
"""Four to five seconds of speech."""

UNIT_MS = 4_000
"""A voice whose words come at this pace does not run dry."""

ANSWER_SHARE = 8
"""A part of so many of what a lane holds is the answer's: a conversation that would take of it slides."""

LANES_PER_ANSWER = 4
"""Lanes that stay open for each answer that may run at once: their conversations go on without being read anew."""

WARM_UP_TOKENS = 256
FIGURES_EVERY_S = 0.5
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 5.0

Result = TypeVar("Result")


@attrs.frozen
class _End:
    """The last thing in an answer's queue."""

    usage: Usage | None
    failure: BaseException | None = None


_Pieces = queue.Queue[int | _End]


class LaneChat:
    """A LanguageModel. ``stop``: the ids that end an answer. The engine's work runs in ``loop``; when the engine is lost, so
    is that thread, and in a worker the process with it: whoever hosts it starts another."""

    def __init__(
        self,
        loop: LoopThread,
        lanes: LaneEngine,
        tokenizer: ChatTokenizer,
        stop: Sequence[int],
        parallel: int,
        few_shot: bool = False,
    ) -> None:
        self.parallel = parallel
        self.context_tokens = lanes.limits.lane_tokens_max
        self.few_shot = few_shot
        self._loop = loop
        self._lanes = lanes
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._prefixes = Prefixes(parallel * LANES_PER_ANSWER)
        self._server = UnitServer(lanes, UnitScheduler(scheduler_options(parallel, lanes.limits.kv_tokens)))
        self._decoding: set[asyncio.Task[Usage]] = set()
        self._slid = 0
        """Conversations whose oldest turns were dropped, however often."""
        self._figures = ModelStatistics()
        self._watching = loop.start(self._watch())

    def measure(self, progress: Callable[[float], None]) -> None:
        """Answer ``parallel`` made-up prompts at once, so that admission knows how long a unit takes before anybody asks."""
        unit = Unit((Tokens(tuple(range(1, UNIT_TOKENS + 1))),), UNIT_TOKENS)
        history = min(WARM_UP_TOKENS, self.context_tokens // 4)
        self._loop.run(self._server.warm_up(WarmUp(self.parallel, history, unit), progress))

    def generate(self, messages: Sequence[ChatMessage], max_tokens: int, on_text: OnText, cancel: Cancel) -> Usage:
        """See LanguageModel. Raises EngineLost too: the process that hosts the engine had better end."""
        cancel.check()
        ids = self._prompt(messages)
        room = self.context_tokens - len(ids) - 1
        if room < 1:
            raise PartFailed("lane_full", f"a prompt of {len(ids)} tokens, a lane holds {self.context_tokens}")
        limit = min(max_tokens, room)
        pieces: _Pieces = queue.Queue(limit + UNIT_TOKENS + 1)
        stop = Cancel()
        forget = cancel.waking(stop.cancel)
        head_tokens = common(ids, self._tokenizer.ids(head_of(messages)))
        answering = self._loop.start(self._answer(ids, head_tokens, limit, pieces, stop))
        try:
            return self._read(pieces, on_text, cancel)
        finally:
            stop.cancel()
            forget()
            wait((answering,), STOP_TIMEOUT_S)  # the next prompt may want this lane

    def warm(self, messages: Sequence[ChatMessage], cancel: Cancel) -> None:
        """See LanguageModel."""
        self.generate(messages, 1, lambda _text: None, cancel)

    def statistics(self) -> ModelStatistics:
        """See LanguageModel: as of half a second ago."""
        return self._figures

    def figures(self) -> ModelStatistics:
        """Now; called inside the loop."""
        return model_statistics(self._server.snapshot(), self._slid)

    def close(self) -> None:
        """See LanguageModel."""
        self._watching.cancel()
        with suppress(EngineLost):
            self._loop.run(self._lanes.shutdown())
        self._loop.close()

    # --- on the caller's thread -------------------------------------------------------------------------------------

    def _prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Its ids: without the oldest turns, where all of them would not leave an answer its room. Whoever chose the messages
        could only estimate their tokens."""
        ids = self._tokenizer.ids(messages)
        most = self.context_tokens - self.context_tokens // ANSWER_SHARE - 1
        if len(ids) <= most:
            return ids
        head = head_of(messages)
        turns = messages[len(head) :]
        fixed = sum(map(self._tokenizer.tokens, head)) + self._tokenizer.around
        kept = newest(turns, max(most - fixed, most // 4), self._tokenizer.tokens)
        return ids if len(kept) == len(turns) else self._tokenizer.ids([*head, *kept])

    def _read(self, pieces: _Pieces, on_text: OnText, cancel: Cancel) -> Usage:
        """Tokens become text."""
        words = self._tokenizer.stream()
        while not isinstance(piece := pieces.get(), _End):
            text = words.push(piece)
            if text:
                cancel.check()
                on_text(text)
        cancel.check()
        if isinstance(piece.failure, LaneError):
            raise PartFailed(piece.failure.code, str(piece.failure)) from piece.failure
        if isinstance(piece.failure, EngineLost | Cancelled):
            raise piece.failure
        if piece.failure is not None:
            raise _fault(piece.failure) from piece.failure
        assert piece.usage is not None
        return piece.usage

    # --- in the engine's loop ---------------------------------------------------------------------------------------

    async def _answer(self, ids: list[int], head_tokens: int, max_tokens: int, pieces: _Pieces, stop: Cancel) -> None:
        """Whatever happens, and whenever it is stopped, the queue gets an _End. It holds an answer whole: nothing waits."""
        loop = asyncio.get_running_loop()
        decoding = loop.create_task(self._decode(ids, head_tokens, max_tokens, pieces))
        self._decoding.add(decoding)

        def end() -> None:
            loop.call_soon_threadsafe(decoding.cancel)

        forget = stop.waking(end)
        try:
            await asyncio.wait({decoding})
        finally:  # also when the loop ends first
            forget()
            self._decoding.discard(decoding)
            pieces.put_nowait(_end_of(decoding))

    async def _decode(self, ids: list[int], head_tokens: int, max_tokens: int, pieces: _Pieces) -> Usage:
        choice = self._prefixes.take(ids, head_tokens)
        if choice is None:
            raise LaneError("lane_busy", "all lanes are in use")
        self._slid += choice.slid
        lane = choice.slot.lane
        content = list(ids)
        try:
            await self._server.admit(lane, kv_tokens=len(ids) + max_tokens)
            try:
                start = await self._begin(choice, ids)
                reason = await self._say(lane, ids[start:], max_tokens, content, pieces)
            finally:
                self._server.leave(lane)
            return Usage(len(ids), len(content) - len(ids), reason == "length")
        finally:
            self._prefixes.give(choice.slot, self._held(lane, content))

    async def _begin(self, choice: Choice, ids: list[int]) -> int:
        """Bring the lane to the common beginning; its length."""
        lane = choice.slot.lane
        if choice.keep:
            await self._lanes.truncate(lane, choice.keep)
            return choice.keep
        await self._lanes.close(lane)
        await self._lanes.open(lane, [Tokens(tuple(ids[:1]))], warm=False)
        return 1

    async def _say(self, lane: str, new: Sequence[int], max_tokens: int, content: list[int], pieces: _Pieces) -> str:
        """Unit after unit; the last one's reason. What is said goes to ``content`` too."""
        parts: tuple[Tokens, ...] = (Tokens(tuple(new)),)
        left = max_tokens
        while True:
            reason = ""
            async with aclosing(self._server.feed(lane, Unit(parts, min(UNIT_TOKENS, left), self._stop))) as events:
                async for event in events:
                    if isinstance(event, UnitEnd):
                        reason = event.reason
                    elif isinstance(event, Said):
                        content.extend(event.ids)
                        left -= len(event.ids)
                        for token in event.ids:
                            pieces.put_nowait(token)
            if reason != "length" or left <= 0:
                return reason
            parts = ()  # it goes on from where it is

    def _held(self, lane: str, content: list[int]) -> list[int]:
        """What the lane is known to begin with: ``content`` as far as it came, however the answer ended."""
        with suppress(LaneError):
            return content[: self._lanes.history_tokens(lane)]
        return []

    async def _watch(self) -> None:
        """Keep the figures fresh, and do not wait for the next answer to notice that the engine is gone."""
        refreshing = asyncio.create_task(self._refresh())
        try:
            reason = await self._lanes.wait_lost()
        finally:
            refreshing.cancel()
        if self._decoding:  # they hear of it too, and tell those who wait for them
            await asyncio.wait(self._decoding, timeout=STOP_TIMEOUT_S)
        self._loop.fail(EngineLost(reason))

    async def _refresh(self) -> None:
        while True:
            self._figures = self.figures()
            await asyncio.sleep(FIGURES_EVERY_S)


def _fault(error: BaseException) -> PartFailed:
    """An answer's end by what nobody foresaw."""
    tell_fault(error)
    return PartFailed("model_error", f"the answer could not be decoded: {kind(error)}")


def _end_of(decoding: asyncio.Task[Usage]) -> _End:
    if not decoding.done():
        return _End(None, EngineLost("the engine's thread has ended"))
    if decoding.cancelled():
        return _End(None, Cancelled())
    failure = decoding.exception()
    return _End(decoding.result()) if failure is None else _End(None, failure)


def scheduler_options(parallel: int, kv_tokens: int) -> SchedulerOptions:
    """An answer is a session of the scheduler's for as long as it is being said. The one that has the engine to itself is let
    in however slow that is: late words are better than none."""
    return SchedulerOptions(
        unit_ms=UNIT_MS,
        sessions_max=parallel,
        running_max=parallel,
        kv_tokens=kv_tokens,
        waiting_max=parallel,
        sessions_min=1,
    )


class LoopThread:
    """An asyncio event loop in a thread of its own. The loop is closed when the thread ends."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="lanes", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine. Raises EngineLost when the thread has ended."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise EngineLost("the engine's thread has ended") from error

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float = START_TIMEOUT_S) -> Result:
        """Run a coroutine to its end. Raises TimeoutError, EngineLost, and what it raises."""
        return self.start(work).result(timeout_s)

    def fail(self, failure: BaseException) -> None:
        """End the thread with ``failure``; called inside the loop."""
        if not self._over.done():
            self._over.set_exception(failure)

    def close(self) -> None:
        """End the thread, if it lives."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)
        self._thread.join()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_over())

    async def _until_over(self) -> None:
        await self._over


def model_statistics(snapshot: LaneSnapshot, prompts_slid: int = 0) -> ModelStatistics:
    """As the port has them. ``prompts_slid``: slides that the lanes know nothing of, since the prompt came without its oldest
    turns."""
    engine, units = snapshot.engine, snapshot.units
    assert units is not None, "there is a scheduler before the lanes"
    return ModelStatistics(
        lanes_open=engine.lanes_open,
        lanes_parked=engine.lanes_parked,
        units_waiting=units.units_waiting + units.sessions_waiting,
        units_running=units.units_running,
        kv_used=engine.kv_used,
        tokens_per_s=engine.tokens_per_s,
        units_done=units.units_done,
        deadline_misses=units.deadline_misses,
        refused=units.refused,
        lanes_slid=engine.slid + prompts_slid,
        tokens_in=engine.tokens_in,
        tokens_out=engine.tokens_out,
        prefix_tokens_asked=engine.prefix_tokens_asked,
        prefix_tokens_cached=engine.prefix_tokens_cached,
        unit=durations(engine.unit_ms),
        queue=durations(units.queue_ms),
    )
