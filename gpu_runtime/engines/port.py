"""The lane engine's port: a lane is a growing sequence of tokens and embeddings whose KV cache an engine keeps.

A lane is opened with a prompt and then fed units, one after another. For each unit the engine decodes a bounded number of
tokens, and both become the lane's history. Positions count tokens from the lane's beginning; an embedding row is one
token. The promise that all the others rest on is **same as one shot**: decoded greedily, the tokens of each unit are
those that a single request over the lane's whole history would give; however often it was cut, slid, parked or moved to
another engine meanwhile.

Calls are made in one asyncio event loop. A ``LaneError`` costs one lane; ``EngineLost`` costs them all.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from gpu_runtime.engines.times import NO_TIMES, Times

Rows = npt.NDArray[np.float32]
"""Embeddings: [tokens, width]."""


@attrs.frozen
class Tokens:
    """Token ids, in order."""

    ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


@attrs.frozen(eq=False)
class Embeddings:
    """Ready-made embeddings, e.g. of an audio encoder: float32 [tokens, width], finite."""

    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)


Part = Tokens | Embeddings


@attrs.frozen
class Unit:
    """One step of the model's clock: what came in, and how much may be said about it."""

    parts: tuple[Part, ...]
    max_new_tokens: int
    stop_tokens: tuple[int, ...] = ()
    """Decoding ends after any of these; the terminator becomes history too."""
    temperature: float = 0.0
    """0 is greedy."""
    repetition_penalty: float = 1.0
    due_ns: int = 0
    """``time.monotonic_ns`` by which it should be done: of long prompts, the earliest due are computed first. 0: now."""

    @property
    def tokens(self) -> int:
        """What comes in, without what is decoded."""
        return sum(map(len, self.parts))


@attrs.frozen
class Said:
    """Tokens as they are decoded, in order, at ``time.monotonic_ns``."""

    ids: tuple[int, ...]
    at_ns: int


@attrs.frozen
class Slid:
    """The lane's beginning was dropped after the prompt: positions moved."""

    units_dropped: int
    tokens_before: int
    tokens_after: int


@attrs.frozen
class UnitEnd:
    """The last word on a unit."""

    reason: str
    """``stop`` (a terminator), ``length`` (max_new_tokens) or ``aborted``."""
    history_tokens: int
    """The lane's length, the unit's own tokens included."""
    cached_tokens: int
    """Of the first chunk of a new request: what the prefix cache held. 0 where the lane was simply continued."""
    reopened: bool
    """Whether the unit had to begin with a new request (after a truncation, a slide, or from the park)."""
    slid: Slid | None
    """A slide that took effect with this unit."""
    timings: tuple[tuple[str, int], ...]
    """(stage, time.monotonic_ns()): ``fed``, ``started``, ``first_token``, ``done``."""


Fed = Said | UnitEnd


@attrs.frozen
class EngineLimits:
    """Fixed once the engine is up. ``lane_tokens_max``: the longest history. ``kv_tokens``: what all lanes may hold
    together. ``requests_max``: lanes that hold KV at once. ``embedding_width`` 0: it takes token ids only."""

    lane_tokens_max: int
    kv_tokens: int
    block_tokens: int
    requests_max: int
    embedding_width: int = 0


@attrs.frozen
class Window:
    """When a lane slides: a lane of more than ``high`` tokens keeps its prompt and the newest units, ``low`` in all."""

    high: int
    low: int


@attrs.frozen
class EngineStatistics:
    """Counts since the engine came up, but for the first six, which are now."""

    lanes_open: int = 0
    lanes_parked: int = 0
    """Open lanes that hold no request: their KV is in the prefix cache, or gone."""
    units_running: int = 0
    kv_tokens_held: int = 0
    """By the lanes' requests, in whole blocks."""
    kv_used: float = 0.0
    """The engine's own figure, 0..1, of all its blocks."""
    tokens_per_s: float = 0.0
    """Decoded, by all lanes together, over the last ten seconds."""
    units_done: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    requests_opened: int = 0
    prefix_tokens_asked: int = 0
    prefix_tokens_cached: int = 0
    parked: int = 0
    """How often a lane lost its request to make room for another."""
    truncated: int = 0
    slid: int = 0
    slides_waited_for: int = 0
    """Slides that were not ready when the lane could not go on without."""
    failed: int = 0
    """Units that ended with a LaneError, those that stalled included."""
    stalled: int = 0
    """Chunks of which the engine gave nothing for so long that their request was given up."""
    unit_ms: Times = NO_TIMES
    """From the feeding of a unit to its last token; units that were aborted or failed do not count."""
    first_token_ms: Times = NO_TIMES
    """From the feeding of a unit to its first token."""


class LaneError(Exception):
    """This lane cannot do that; others are not touched. ``code`` is stable: ``lane_unknown``, ``lane_exists``,
    ``lane_busy``, ``lane_full``, ``lane_stalled``, ``bad_embedding``, ``bad_unit``, ``bad_position``, ``model_error``,
    ``engine_fault`` (what nobody foresaw, between us and the engine)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EngineLost(Exception):
    """The engine is gone, with every lane in it. Lanes are opened again, from their history, on another one."""


class LaneEngine(Protocol):
    """Hosts lanes."""

    @property
    def limits(self) -> EngineLimits:
        """Fixed once the engine is up."""

    async def open(
        self,
        lane: str,
        prompt: Sequence[Part],
        heard: Sequence[Sequence[Part]] = (),
        *,
        warm: bool = True,
        due_ns: int = 0,
    ) -> None:
        """A new lane over ``prompt``, 1 token at least, which every slide keeps, and the units that were heard before,
        which slides drop. ``warm``: return when its KV is there; else it is made with the first unit. ``due_ns`` as a
        unit's: when the lane's first unit is due. Raises LaneError (lane_exists, lane_full, bad_embedding, bad_unit)."""

    def feed(self, lane: str, unit: Unit) -> AsyncGenerator[Fed, None]:
        """Append ``unit`` and decode. Gives ``Said`` as tokens come, then one ``UnitEnd``. Raises LaneError (lane_unknown,
        lane_busy while a unit runs, lane_full, bad_embedding, bad_unit), and then nothing was appended."""

    async def abort(self, lane: str) -> None:
        """Stop the unit that runs, if any; what was said stays history. Its ``feed`` ends with ``aborted``."""

    async def truncate(self, lane: str, tokens: int, *, warm: bool = False) -> None:
        """Forget everything from position ``tokens`` on (1 at least); stops the unit that runs. ``warm`` as for open.
        Raises LaneError (lane_unknown, bad_position)."""

    async def slide(self, lane: str, keep_tokens: int) -> None:
        """Begin to make the lane's successor: its prompt and its newest whole units, ``keep_tokens`` in all at most. The
        lane serves on; the successor takes over at the beginning of a unit, when it is ready. Raises LaneError."""

    async def close(self, lane: str) -> None:
        """Free the lane. Unknown lanes are ignored."""

    def history_tokens(self, lane: str) -> int:
        """The lane's length. Raises LaneError (lane_unknown)."""

    def statistics(self) -> EngineStatistics:
        """Now."""

    async def wait_lost(self) -> str:
        """Return when the engine is gone, whether or not a unit runs: why."""

    async def shutdown(self) -> None:
        """Free everything; feeds that run end with EngineLost."""
