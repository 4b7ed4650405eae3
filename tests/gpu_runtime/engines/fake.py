"""A request engine without a model: deterministic tokens, and every known fault of the real one.

The next token is a digest of everything before it, so a token that is lost, doubled or out of place changes all that
follow. An embedding row stands for the token that ``rows_for`` made it of, so that embeddings and ids can be compared. The
faults (see ``requests.py``): the last sampled token is forgotten, a request that grows too long takes the engine down,
idle requests keep their KV and their places, and whoever then needs more waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from hashlib import blake2b

import attrs
import numpy as np

from gpu_runtime.engines.port import EngineLimits, EngineLost, LaneError, Part, Rows, Tokens
from gpu_runtime.engines.requests import Piece, Sampling

VOCABULARY = 1_000
WIDTH = 4
POISON = VOCABULARY + 1
"""A token that the model cannot compute: its request fails."""


def rows_for(ids: Sequence[int]) -> Rows:
    """Embeddings that mean the same as ``ids``: [tokens, WIDTH]."""
    return np.repeat(np.asarray(ids, dtype=np.float32)[:, None], WIDTH, axis=1)


def next_token(history: Sequence[int]) -> int:
    """What the model says after ``history``."""
    digest = blake2b(b"".join(token.to_bytes(4, "big") for token in history), digest_size=4).digest()
    return int.from_bytes(digest, "big") % VOCABULARY


def one_shot(history: Sequence[int], max_new_tokens: int, stop_tokens: Sequence[int] = ()) -> list[int]:
    """What a single request over ``history`` gives."""
    said: list[int] = []
    while len(said) < max_new_tokens and not (said and said[-1] in stop_tokens):
        said.append(next_token([*history, *said]))
    return said


LIMITS = EngineLimits(lane_tokens_max=256, kv_tokens=2_048, block_tokens=16, requests_max=8, embedding_width=WIDTH)


@attrs.frozen
class FakeOptions:
    """``step_s``: what one token takes; ``prefill_s``: what each uncached token of a prompt takes; ``close_s``: a request's
    end. ``rewinds``: see RequestEngine. ``leaks``: a fault, for tests that must notice it: a chunk that was cut before
    its first token says it to the next one."""

    limits: EngineLimits = LIMITS
    step_s: float = 0.0
    prefill_s: float = 0.0
    close_s: float = 0.0
    rewinds: bool = False
    leaks: bool = False


@attrs.define
class _Chunk:
    """One that was pushed. The KV of ``decoded`` is not in ``tokens`` yet, nor that of ``prompt`` until it is empty."""

    prompt: list[int]
    decoded: list[int] = attrs.field(factory=list)
    interrupted: bool = False
    over: bool = False


class FakeRequests:
    """See RequestEngine."""

    def __init__(self, options: FakeOptions | None = None) -> None:
        self.options = options or FakeOptions()
        self.lost: str | None = None
        self.open: dict[str, FakeRequest] = {}
        self.silent: set[str] = set()
        """Lanes, or requests, that get no more tokens."""
        self._cache: set[tuple[int, ...]] = set()
        self._changed = asyncio.Event()

    @property
    def limits(self) -> EngineLimits:
        """See RequestEngine."""
        return self.options.limits

    @property
    def rewinds(self) -> bool:
        """See RequestEngine."""
        return self.options.rewinds

    def request(self, name: str) -> FakeRequest:
        """See RequestEngine."""
        if name in self.open:
            raise ValueError(f"request {name} is open")
        return FakeRequest(self, name)

    def kv_used(self) -> float:
        """See RequestEngine."""
        return self.blocks_used() * self.limits.block_tokens / self.limits.kv_tokens

    async def wait_lost(self) -> str:
        """See RequestEngine."""
        while self.lost is None:
            await self.wait()
        return self.lost

    async def shutdown(self) -> None:
        """See RequestEngine."""
        self.die("shut down")

    async def spend(self, tokens: int, prompt: bool = False) -> None:
        """The time that it takes to compute so many of a prompt's tokens, or to decode one."""
        seconds = self.options.prefill_s if prompt else self.options.step_s
        if tokens and (seconds or not prompt):
            await asyncio.sleep(tokens * seconds)

    def die(self, reason: str) -> None:
        """The engine process is gone."""
        self.lost = reason
        self.changed()

    def blocks_used(self) -> int:
        """By open requests."""
        size = self.limits.block_tokens
        return sum(-(-len(request.tokens) // size) for request in self.open.values())

    def changed(self) -> None:
        """Wake whoever waits for blocks, places or the end."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Until something changed."""
        await self._changed.wait()

    def check(self) -> None:
        """Raises EngineLost."""
        if self.lost is not None:
            raise EngineLost(self.lost)

    def cached(self, tokens: Sequence[int]) -> int:
        """How much of a prompt's beginning is known, in whole blocks."""
        size = self.limits.block_tokens
        known = 0
        while known + size <= len(tokens) and tuple(tokens[: known + size]) in self._cache:
            known += size
        return known

    def remember(self, tokens: Sequence[int]) -> None:
        """The prefix cache learns whole blocks."""
        size = self.limits.block_tokens
        self._cache.update(tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size))


class FakeRequest:
    """See Request."""

    def __init__(self, engine: FakeRequests, name: str) -> None:
        self._engine = engine
        self._name = name
        self._closed = False
        self._chunk = _Chunk([])
        """The newest."""
        self._leak: list[int] = []
        self.tokens: list[int] = []
        """Whose KV it holds."""

    async def push(
        self, parts: Sequence[Part], sampling: Sampling, keep_tokens: int | None = None
    ) -> AsyncGenerator[Piece, None]:
        """See Request."""
        engine, options = self._engine, self._engine.options
        engine.check()
        if keep_tokens is not None:
            assert options.rewinds
            assert keep_tokens <= len(self.tokens), "more is to be kept than there is"
            del self.tokens[keep_tokens:]
            engine.changed()
        prompt = [token for part in parts for token in _ids(part)]
        if not prompt:
            raise ValueError("an empty chunk")
        if POISON in prompt:
            raise LaneError("model_error", "the model cannot compute this chunk")
        before, chunk = self._chunk, _Chunk(prompt)
        self._chunk = chunk
        if before.interrupted:
            await engine.spend(1)  # the step that was under way
        while self._leak:
            yield Piece((self._leak.pop(),), "")
        cached = 0
        if self._name not in engine.open:
            while len(engine.open) >= engine.limits.requests_max and not self._closed:
                await engine.wait()
                engine.check()
            engine.open[self._name] = self
            cached = min(engine.cached(prompt), len(prompt) - 1)
        await self._compute(chunk, prompt, len(prompt) - cached)
        said = chunk.decoded
        while not self._closed and not chunk.interrupted:
            token = next_token([*self.tokens, *said])
            await engine.spend(1)
            while engine.silent & {self._name, self._name.partition("/")[0]}:
                await engine.wait()
            engine.check()
            if self._closed or chunk.interrupted:
                break
            said.append(token)
            stop = token in sampling.stop_tokens
            finish = "stop" if stop else "length" if len(said) >= sampling.max_new_tokens else ""
            if finish:
                await self._compute(chunk, said[:-1], 0)
                chunk.over = True
            yield Piece((token,), finish, cached)
            if finish:
                return
        yield Piece((), "aborted", cached)

    async def _compute(self, chunk: _Chunk, tokens: Sequence[int], uncached: int) -> None:
        """Hold the KV of ``tokens`` too, when there are blocks for it, unless ``interrupt`` has seen to that."""
        engine = self._engine
        size, total = engine.limits.block_tokens, engine.limits.kv_tokens // engine.limits.block_tokens
        if len(self.tokens) + len(tokens) > engine.limits.lane_tokens_max:
            engine.die("a request grew beyond the model's length")
            engine.check()
        own = -(-len(self.tokens) // size)
        while not self._closed and engine.blocks_used() - own + -(-(len(self.tokens) + len(tokens)) // size) > total:
            await engine.wait()
            engine.check()
        await engine.spend(uncached, prompt=True)
        if not chunk.interrupted:
            self._hold(chunk, tokens)

    def _hold(self, chunk: _Chunk, tokens: Sequence[int]) -> None:
        chunk.prompt = []
        self.tokens.extend(tokens)
        self._engine.remember(self.tokens)

    def interrupt(self) -> None:
        """See Request."""
        assert self._engine.options.rewinds
        chunk = self._chunk
        if chunk.over or chunk.interrupted:
            return
        chunk.interrupted = True
        self._hold(chunk, [*chunk.prompt, *chunk.decoded[:-1]])
        if self._engine.options.leaks and not chunk.decoded:
            self._leak = [next_token(self.tokens)]

    async def close(self) -> None:
        """See Request."""
        self._closed = True
        try:
            if self._engine.options.close_s:
                await asyncio.sleep(self._engine.options.close_s)
        finally:
            self._engine.open.pop(self._name, None)
            self._engine.changed()


def _ids(part: Part) -> Sequence[int]:
    return part.ids if isinstance(part, Tokens) else [int(row[0]) for row in part.rows]
