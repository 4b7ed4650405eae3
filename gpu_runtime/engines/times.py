"""Durations as a histogram, and tokens as a rate: plain numbers that may travel, and can be added up over engines."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

import attrs

from core.session.time_units import NS_PER_MS

BOUNDS_MS = (
    5.0,
    10.0,
    20.0,
    35.0,
    50.0,
    75.0,
    100.0,
    150.0,
    250.0,
    400.0,
    600.0,
    800.0,
    1_000.0,
    1_500.0,
    2_500.0,
    10_000.0,
)
"""Upper bounds. A unit of a second is late beyond 1,000, one of 80 ms beyond 75."""

RATE_S = 10


@attrs.frozen
class Times:
    """``counts``: for each of BOUNDS_MS, the durations up to it and above the bound before; then those beyond the last."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_MS) + 1)
    total_ms: float = 0.0

    @property
    def count(self) -> int:
        """All of them."""
        return sum(self.counts)


NO_TIMES = Times()


class TimesRecorder:
    """Takes durations in."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._total_ms = 0.0

    def add(self, duration_ns: int) -> None:
        """One more."""
        duration_ms = duration_ns / NS_PER_MS
        self._counts[bisect_left(BOUNDS_MS, duration_ms)] += 1
        self._total_ms += duration_ms

    def times(self) -> Times:
        """Until now."""
        return Times(tuple(self._counts), self._total_ms)


class Rate:
    """Events a second, over the last RATE_S whole seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque(maxlen=RATE_S + 1)
        """(second, events in it), ascending."""

    def add(self, now_ns: int, events: int) -> None:
        """Events at ``now_ns``, which never runs backwards."""
        second = now_ns // 1_000_000_000
        before = self._seconds.pop()[1] if self._seconds and self._seconds[-1][0] == second else 0
        self._seconds.append((second, before + events))

    def per_s(self, now_ns: int) -> float:
        """The second that is under way does not count yet."""
        second = now_ns // 1_000_000_000
        return sum(events for at, events in self._seconds if second - RATE_S <= at < second) / RATE_S
