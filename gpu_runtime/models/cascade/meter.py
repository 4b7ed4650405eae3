"""What the cascade's answers cost, whichever language model thinks them: an answer is a unit of its clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import attrs

from core.ports.runtime import Durations, ModelStatistics
from gpu_runtime.engines.times import BOUNDS_MS, Rate, Times, TimesRecorder
from gpu_runtime.models.cascade.parts import Usage
from gpu_runtime.models.cascade.stage import StageStatistics
from gpu_runtime.tallies import added


class Meter:
    """Takes the stations of answers in, from any thread. Instants are ``clock_ns``'s."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock_ns = clock_ns
        self._lock = threading.Lock()
        self._counts = ModelStatistics()
        self._queue, self._first_text, self._whole = TimesRecorder(), TimesRecorder(), TimesRecorder()
        self._pieces = Rate()

    def began(self, asked_ns: int) -> None:
        """The model turns to an answer that was asked for at ``asked_ns``."""
        with self._lock:
            self._queue.add(self.clock_ns() - asked_ns)

    def text(self, asked_ns: int, first: bool) -> None:
        """A piece of text came: a token, or what an endpoint makes of some."""
        with self._lock:
            now_ns = self.clock_ns()
            self._pieces.add(now_ns, 1)
            if first:
                self._first_text.add(now_ns - asked_ns)

    def thought(self, asked_ns: int, usage: Usage) -> None:
        """All of its text is there."""
        with self._lock:
            self._whole.add(self.clock_ns() - asked_ns)
            self._count(units_done=1, tokens_in=usage.input_tokens, tokens_out=usage.output_tokens)

    def failed(self) -> None:
        """An answer ended with an error."""
        with self._lock:
            self._count(lanes_failed=1)

    def statistics(self, lanes: ModelStatistics | None, thinking: StageStatistics, lanes_open: int) -> ModelStatistics:
        """``lanes``: what the language model says of its own, which then goes before what can be seen from here."""
        with self._lock:
            first_token = durations(self._first_text.times())
            if lanes is not None:
                return attrs.evolve(lanes, first_token=first_token, lanes_failed=self._counts.lanes_failed)
            return attrs.evolve(
                self._counts,
                lanes_open=lanes_open,
                units_waiting=thinking.waiting,
                units_running=thinking.running,
                tokens_per_s=self._pieces.per_s(self.clock_ns()),
                unit=durations(self._whole.times()),
                queue=durations(self._queue.times()),
                first_token=first_token,
            )

    def _count(self, **more: int) -> None:
        self._counts = added(self._counts, **more)


def durations(times: Times) -> Durations:
    """As the port has them."""
    return Durations(BOUNDS_MS, times.counts, times.total_ms)
