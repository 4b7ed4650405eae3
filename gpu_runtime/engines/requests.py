"""What ``StreamedLanes`` needs of an engine: requests that stay open and take chunk after chunk.

This is vLLM's streaming input as it was measured, faults included; an implementation need not mend them, since the lanes
keep clear of them:

* The last token sampled for a chunk is forgotten: its KV was never computed. Who wants it sends it again.
* A request that grows beyond ``lane_tokens_max`` may take the engine down.
* An open request holds its KV and one of ``requests_max`` places until it is closed, whether it computes or not; when
  either has run out, others wait for ever.
* A chunk is not interrupted by the next one.

One thing is asked of it: of a long prompt it computes a small piece a step while others decode, so that they go on. A few
such prompts may be on their way at once (``prefills``), and each step has room for a piece of each beside the units.
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
    """Tokens of a chunk. ``finish``: "" while more will come; then ``stop``, ``length`` or ``aborted``.
    ``cached_tokens``: what the request's first chunk found in the prefix cache."""

    ids: tuple[int, ...]
    finish: str
    cached_tokens: int = 0


class Request(Protocol):
    """One open request."""

    def push(
        self, parts: Sequence[Part], sampling: Sampling, keep_tokens: int | None = None
    ) -> AsyncGenerator[Piece, None]:
        """Append a chunk of one token or more; its tokens as they come. One chunk at a time, unless the one before was
        interrupted. ``keep_tokens``: first forget what lies behind (only where the engine ``rewinds``, and not in the
        middle of a part of rows). Raises LaneError (model_error) when the engine refuses it or its logits are no numbers,
        EngineLost when the engine is gone."""

    def interrupt(self) -> None:
        """End the chunk that runs, if any, as soon as its step is over; its ``push`` gives ``aborted`` at once. Only where
        the engine ``rewinds``."""

    async def close(self) -> None:
        """End it, in mid-chunk or not. Its blocks are free and stay in the prefix cache while nobody needs them."""


class RequestEngine(Protocol):
    """Makes requests."""

    @property
    def limits(self) -> EngineLimits:
        """Fixed once it is up."""

    @property
    def rewinds(self) -> bool:
        """Whether requests can be interrupted and go back to an earlier position, which spares a truncated lane a new
        request that brings its whole history again."""

    def request(self, name: str) -> Request:
        """A new request; ``name`` is unique among the open ones."""

    def kv_used(self) -> float:
        """Share of the blocks in use, 0..1, as last reported."""

    async def wait_lost(self) -> str:
        """Return when the engine is gone: why. Requests that are open then raise EngineLost."""

    async def shutdown(self) -> None:
        """End everything."""
