"""Which open lane a prompt should go on from: chat models are asked with whole conversations, lanes want what is new."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

KEEP_MIN_TOKENS = 8
"""A shorter common beginning is no reason to cut a lane that somebody may come back to."""


@attrs.define(eq=False)
class Slot:
    """A lane and the ids that it holds."""

    lane: str
    ids: list[int] = attrs.field(factory=list)
    busy: bool = False
    used: int = 0


@attrs.frozen(eq=False)
class Choice:
    """Go on with ``slot`` from position ``keep``: 0 means that it is to be opened anew."""

    slot: Slot
    keep: int


class Prefixes:
    """At most ``slots_max`` lanes, each idle or in use by one prompt."""

    def __init__(self, slots_max: int) -> None:
        self._slots_max = slots_max
        self._slots: list[Slot] = []
        self._clock = itertools.count(1)

    def take(self, ids: Sequence[int]) -> Choice | None:
        """The idle lane with the longest common beginning, else a new one, else the idle one that was used least recently.
        One token of ``ids`` at least is left to feed. It is busy from here on. None: all are in use."""
        idle = [slot for slot in self._slots if not slot.busy]
        best = max(idle, key=lambda slot: (common(slot.ids, ids), slot.used), default=None)
        keep = min(common(best.ids, ids), len(ids) - 1) if best is not None else 0
        if best is None or keep < KEEP_MIN_TOKENS:
            keep = 0
            if len(self._slots) < self._slots_max:
                best = Slot(f"chat-{len(self._slots)}")
                self._slots.append(best)
            elif idle:
                best = min(idle, key=lambda slot: slot.used)
            else:
                return None
        assert best is not None
        best.busy, best.used = True, next(self._clock)
        return Choice(best, keep)

    def give(self, slot: Slot, ids: Sequence[int]) -> None:
        """It is idle again, and holds ``ids``."""
        slot.busy, slot.ids = False, list(ids)


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count
