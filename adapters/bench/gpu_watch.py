"""What the engine did while a load ran, step by step: to find out why a unit was late."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

from gpu_runtime.engines.port import EngineStatistics

SAMPLE_S = 0.5
TICK_S = 0.01


class Watch:
    """``statistics``: the lanes'. ``listen``: asks to be told of each step: requests that ran, that waited, tokens given."""

    def __init__(
        self, statistics: Callable[[], EngineStatistics], listen: Callable[[Callable[[int, int, int], None]], None]
    ) -> None:
        self._statistics = statistics
        self._samples: list[tuple[float, int, int, int, int, int]] = []
        self._steps: list[tuple[float, int, int, int]] = []
        self._lags: list[tuple[float, float]] = []
        self._collections: list[tuple[float, float, int]] = []
        self._collecting_s = 0.0
        listen(lambda *step: self._steps.append((time.monotonic(), *step)))

    async def run(self) -> None:
        """Until cancelled."""
        gc.callbacks.append(self._collected)
        next_s = 0.0
        try:
            while True:
                before_s = time.monotonic()
                await asyncio.sleep(TICK_S)
                now_s = time.monotonic()
                if now_s - before_s > 3 * TICK_S:
                    self._lags.append((now_s, now_s - before_s - TICK_S))
                if now_s >= next_s:
                    next_s = now_s + SAMPLE_S
                    now = self._statistics()
                    self._samples.append(
                        (now_s, now.units_running, now.kv_tokens_held, now.requests_opened, now.slid, now.parked)
                    )
        finally:
            gc.callbacks.remove(self._collected)

    def seen(self, start_s: float) -> dict[str, Any]:
        """Plain data; times in s from ``start_s``."""

        def since(rows: list[Any]) -> list[Any]:
            return [[round(row[0] - start_s, 3), *(round(value, 4) for value in row[1:])] for row in rows]

        return {
            "samples: s, units running, KV tokens held, requests opened, slid, parked": since(self._samples),
            "seconds: s, steps, tokens given, requests running on average, longest time between two steps in s": [
                [second, len(steps), sum(step[3] for step in steps), *_of(steps)]
                for second, steps in self._seconds(start_s)
            ],
            "event loop held up: s, for s": since(self._lags),
            "garbage collected: s, for s, generation": since(self._collections),
        }

    def _seconds(self, start_s: float) -> list[tuple[int, list[tuple[float, int, int, int]]]]:
        return [
            (second, list(steps))
            for second, steps in itertools.groupby(self._steps, key=lambda step: math.floor(step[0] - start_s))
        ]

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        now_s = time.monotonic()
        if phase == "start":
            self._collecting_s = now_s
        elif now_s - self._collecting_s > 0.005:
            self._collections.append((now_s, now_s - self._collecting_s, info["generation"]))


def _of(steps: list[tuple[float, int, int, int]]) -> tuple[float, float]:
    gaps = [later[0] - sooner[0] for sooner, later in itertools.pairwise(steps)]
    return round(sum(step[1] for step in steps) / len(steps), 1), round(max(gaps, default=0.0), 3)
