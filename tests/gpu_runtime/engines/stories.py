"""Verbs for stories about lanes, over any engine."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import attrs

from gpu_runtime.engines.port import Embeddings, Part, Rows, Said, Tokens, Unit, UnitEnd, Window
from gpu_runtime.engines.requests import RequestEngine, Sampling
from gpu_runtime.engines.streamed import StreamedLanes


class Bench(Protocol):
    """An engine under test, and what it takes to judge it."""

    engine: RequestEngine
    vocabulary: int
    poison: int
    """A token that the model cannot compute."""

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a story to its end."""

    def lanes(self, window: Window | None = None) -> StreamedLanes:
        """New lanes on the engine."""

    async def one_shot(self, parts: Sequence[Part], sampling: Sampling) -> list[int]:
        """What a single ordinary request gives."""

    def rows(self, ids: Sequence[int]) -> Rows:
        """The embeddings of ``ids``."""

    kill: Callable[[], Awaitable[None]]


@attrs.define
class Answer:
    """A unit's outcome."""

    said: list[int]
    end: UnitEnd


@attrs.define
class Caller:
    """One lane's user, who remembers by himself what the lane should hold."""

    bench: Bench
    lanes: StreamedLanes
    name: str = "lane"
    seed: int = 1
    history: list[Part] = attrs.field(factory=list)
    random: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def ids(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(5, self.bench.vocabulary) for _ in range(count))

    @property
    def tokens(self) -> int:
        return sum(map(len, self.history))

    async def open(self, tokens: int = 20, warm: bool = True) -> None:
        self.history = [Tokens(self.ids(tokens))]
        await self.lanes.open(self.name, self.history, warm=warm)

    async def say(self, tokens: int = 6, new: int = 5, stop: tuple[int, ...] = (), embedded: bool = False) -> Answer:
        """Feed a unit and hear it out."""
        ids = self.ids(tokens)
        part: Part = Embeddings(self.bench.rows(ids)) if embedded else Tokens(ids)
        return await self.feed(Unit((part,), new, stop))

    async def feed(self, unit: Unit) -> Answer:
        said: list[int] = []
        async with aclosing(self.lanes.feed(self.name, unit)) as events:
            async for event in events:
                if isinstance(event, Said):
                    said.extend(event.ids)
                else:
                    self.history += [*unit.parts, Tokens(tuple(said))]
                    return Answer(said, event)
        raise AssertionError("a unit without an end")

    async def right(self, answer: Answer, new: int = 5, stop: tuple[int, ...] = ()) -> None:
        """The tokens are those of one request over the whole history, and the lane is as long as that."""
        before = self.history[:-1]
        assert answer.said == await self.bench.one_shot(before, Sampling(new, stop))
        assert answer.end.history_tokens == self.lanes.history_tokens(self.name) == self.tokens

    async def say_right(
        self, tokens: int = 6, new: int = 5, stop: tuple[int, ...] = (), embedded: bool = False
    ) -> Answer:
        answer = await self.say(tokens, new, stop, embedded)
        await self.right(answer, new, stop)
        return answer

    async def cut(self, tokens: int, warm: bool = False) -> None:
        """Only so much was heard."""
        await self.lanes.truncate(self.name, tokens, warm=warm)
        self.history = cut(self.history, tokens)

    def slide(self, end: UnitEnd, prompt_tokens: int) -> None:
        """Forget what a slide dropped; ``end`` is of the last unit said."""
        assert end.slid is not None
        last = self.history[-2:]
        dropped = end.slid.tokens_before - end.slid.tokens_after
        before = cut(self.history, end.slid.tokens_before)
        self.history = [*cut(before, prompt_tokens), *tail(before, prompt_tokens + dropped), *last]


def cut(parts: Sequence[Part], tokens: int) -> list[Part]:
    """The first ``tokens``."""
    kept: list[Part] = []
    for part in parts:
        if tokens > 0:
            kept.append(head(part, tokens))
        tokens -= len(part)
    return kept


def head(part: Part, tokens: int) -> Part:
    return Tokens(part.ids[:tokens]) if isinstance(part, Tokens) else Embeddings(part.rows[:tokens])


def tail(parts: Sequence[Part], start: int) -> list[Part]:
    """From ``start`` on."""
    kept: list[Part] = []
    for part in parts:
        if start < len(part):
            low = max(start, 0)
            kept.append(Tokens(part.ids[low:]) if isinstance(part, Tokens) else Embeddings(part.rows[low:]))
        start -= len(part)
    return kept
