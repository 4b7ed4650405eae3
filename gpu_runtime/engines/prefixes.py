"""Which open lane a prompt should go on from: chat models are asked with whole conversations, lanes want what is new."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

KEEP_MIN_TOKENS = 8
"""A shorter common beginning is no reason to cut a lane that somebody may come back to."""


SLID_MIN_TOKENS = 16
"""So many in a row, farther on in a lane than where a prompt leaves it, are no coincidence: what lay between was dropped."""


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
    slid: bool = False
    """The prompt is what the lane holds, without its oldest turns: its conversation's window slid."""


class Prefixes:
    """At most ``slots_max`` lanes, each idle or in use by one prompt."""

    def __init__(self, slots_max: int) -> None:
        self._slots_max = slots_max
        self._slots: list[Slot] = []
        self._clock = itertools.count(1)

    def take(self, ids: Sequence[int], head_tokens: int = 0) -> Choice | None:
        """The idle lane whose conversation this is: the longest common beginning, of equals the one that slid. Else a new
        one, else the idle one that was used least recently. ``head_tokens``: what any conversation may begin with, which
        tells nothing. One token of ``ids`` at least is left to feed. It is busy from here on. None: all are in use."""
        idle = [slot for slot in self._slots if not slot.busy]
        slides = [has_slid(slot.ids, ids) for slot in idle]
        pairs = zip(idle, slides, strict=True)
        chosen = max(pairs, key=lambda pair: (common(pair[0].ids, ids), pair[1], pair[0].used), default=None)
        best, slid = chosen or (None, False)
        if best is None or not (slid or _continues(best.ids, ids, head_tokens)):
            if len(self._slots) < self._slots_max:
                best = Slot(f"chat-{len(self._slots)}")
                self._slots.append(best)
            elif idle:
                best = min(idle, key=lambda slot: slot.used)
            else:
                return None
        keep = min(common(best.ids, ids), len(ids) - 1)
        best.busy, best.used = True, next(self._clock)
        return Choice(best, keep if keep >= KEEP_MIN_TOKENS else 0, slid)

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


def _continues(held: Sequence[int], ids: Sequence[int], head_tokens: int) -> bool:
    """Whether ``ids`` has more in common with what is held than what all begin with, or is held whole, or leaves next to
    nothing."""
    keep = common(held, ids)
    if keep < KEEP_MIN_TOKENS:
        return False
    return keep >= head_tokens + KEEP_MIN_TOKENS or keep == len(ids) or len(held) - keep < KEEP_MIN_TOKENS


def has_slid(held: Sequence[int], ids: Sequence[int]) -> bool:
    """Whether ``ids`` leaves what is held, and goes on with what is held farther on."""
    start = common(held, ids)
    probe = list(ids[start : start + SLID_MIN_TOKENS])
    if len(probe) < SLID_MIN_TOKENS:
        return False
    places = range(start + 1, len(held) - SLID_MIN_TOKENS + 1)
    return any(held[place] == probe[0] and list(held[place : place + SLID_MIN_TOKENS]) == probe for place in places)
