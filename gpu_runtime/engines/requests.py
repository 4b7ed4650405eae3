"""What ``StreamedLanes`` needs of an engine: requests that stay open and take chunk after chunk.

This is vLLM's streaming input as it was measured, faults included; an implementation need not mend them, since the lanes
keep clear of them:

* The last token sampled for a chunk is forgotten: its KV was never computed. Who wants it sends it again.
* A request that grows beyond ``lane_tokens_max`` may take the engine down.
* An open request holds its KV and one of ``requests_max`` places until it is closed, whether it computes or not; when
  either has run out, others wait for ever.
* A chunk is not interrupted by the next one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import attrs

from gpu_runtime.engines.port import EngineLimits, Part


@attrs.frozen
class Sampling:
    """How a chunk is decoded."""

    max_new_tokens: int
    stop_tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    repetition_penalty: float = 1.0


PREFILL = Sampling(max_new_tokens=1)
"""Compute the chunk's KV: the one token that it samples is the forgotten one."""


@attrs.frozen
class Piece:
    """Tokens of a chunk. ``finish``: "" while more will come; then ``stop`` or ``length``. ``cached_tokens``: what the
    request's first chunk found in the prefix cache."""

    ids: tuple[int, ...]
    finish: str
    cached_tokens: int = 0


class Request(Protocol):
    """One open request."""

    def push(self, parts: Sequence[Part], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Append a chunk of one token or more; its tokens as they come. One chunk at a time. Raises LaneError
        (model_error) when the engine refuses it, EngineLost when the engine is gone."""

    async def close(self) -> None:
        """End it, in mid-chunk or not. Its blocks are free and stay in the prefix cache while nobody needs them."""


class RequestEngine(Protocol):
    """Makes requests."""

    @property
    def limits(self) -> EngineLimits:
        """Fixed once it is up."""

    def request(self, name: str) -> Request:
        """A new request; ``name`` is unique among the open ones."""

    def kv_used(self) -> float:
        """Share of the blocks in use, 0..1, as last reported."""

    async def shutdown(self) -> None:
        """End everything."""
