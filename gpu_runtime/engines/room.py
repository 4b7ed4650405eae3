"""Who may hold KV: whole blocks of it, and a place among the engine's open requests.

An engine that runs out of either while idle requests sit on them waits for ever. So each request is entered here before
it is made or grows, and idle ones are parked to make room: their KV then lives in the prefix cache for as long as nobody
needs its blocks.

Of the idle ones, the lane that was fed last is parked first. Units come at a steady pace, so it is the one whose next
unit is farthest away; the least recently used one, which a cache would usually drop, is about to be needed.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs


@attrs.define(eq=False)
class Hold:
    """What one request holds. Only ``Room`` changes the first two."""

    blocks: int = 0
    busy: bool = False
    """A chunk is being computed: it cannot be parked."""
    used_ns: int = 0
    """When its lane was last fed."""


H = TypeVar("H", bound=Hold)


class Room(Generic[H]):
    """Invariant: the holds' blocks add up to at most ``blocks_max``, and there are at most ``holds_max`` of them."""

    def __init__(self, blocks_max: int, holds_max: int) -> None:
        if blocks_max < 1 or holds_max < 1:
            raise ValueError("an engine without any room")
        self.blocks_max = blocks_max
        self.holds_max = holds_max
        self.blocks_held = 0
        self._holds: set[H] = set()

    def __len__(self) -> int:
        return len(self._holds)

    @property
    def busy(self) -> int:
        """Requests that compute."""
        return sum(hold.busy for hold in self._holds)

    def enter(self, hold: H, blocks: int, now_ns: int) -> list[H] | None:
        """Let ``hold``, a new one or one that was idle, have ``blocks`` in all and be busy. The holds that were parked for
        it, to be closed before it computes; None: there is no room now. Raises ValueError when there can never be."""
        if blocks > self.blocks_max:
            raise ValueError(f"{blocks} blocks are more than the engine's {self.blocks_max}")
        new = hold not in self._holds
        blocks_missing = self.blocks_held - hold.blocks + blocks - self.blocks_max
        holds_missing = len(self._holds) + new - self.holds_max
        parked: list[H] = []
        for idle in self._farthest_first(hold):
            if blocks_missing <= 0 and holds_missing <= 0:
                break
            parked.append(idle)
            blocks_missing -= idle.blocks
            holds_missing -= 1
        if blocks_missing > 0 or holds_missing > 0:
            return None
        for idle in parked:
            self.leave(idle)
        self._holds.add(hold)
        self._resize(hold, blocks)
        hold.busy, hold.used_ns = True, now_ns
        return parked

    def rest(self, hold: H, blocks: int) -> None:
        """Its chunk is done, and it holds so many blocks. Nothing for one that left."""
        if hold in self._holds:
            hold.busy = False
            self._resize(hold, blocks)

    def leave(self, hold: H) -> None:
        """It holds nothing any more. Idempotent."""
        if hold in self._holds:
            self._holds.remove(hold)
            self._resize(hold, 0)
            hold.busy = False

    def holds(self, hold: H) -> bool:
        """Whether it is in here: False once it was parked."""
        return hold in self._holds

    def _resize(self, hold: H, blocks: int) -> None:
        self.blocks_held += blocks - hold.blocks
        hold.blocks = blocks

    def _farthest_first(self, but: H) -> list[H]:
        idle = [hold for hold in self._holds if not hold.busy and hold is not but]
        return sorted(idle, key=lambda hold: hold.used_ns, reverse=True)
