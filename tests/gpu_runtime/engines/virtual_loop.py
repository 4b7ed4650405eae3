"""An asyncio loop whose clock jumps to the next deadline: waiting costs nothing, and two runs are alike."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class VirtualLoop(asyncio.SelectorEventLoop):
    """For code that waits on its own tasks and timers only."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def now_ns(self) -> int:
        return round(self.now_s * 1e9)

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run(story: Coroutine[Any, Any, Result], limit_s: float = 3_600.0) -> Result:
    """Run to the end; a story that waits for ever fails at once."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(asyncio.wait_for(story, limit_s))
