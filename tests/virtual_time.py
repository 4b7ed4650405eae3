"""Runs of trio whose clock jumps to the next deadline as soon as everyone waits, but stands still while a thread works.

A mock clock knows nothing of threads: to it, a task that waits for one is a task that waits. Were the clock to jump then,
whatever is due next (a session's idle time, say) would come before the thread's answer, if the thread is slow enough.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import trio
import trio.testing

T = TypeVar("T")

_HOLDS: WeakKeyDictionary[trio.testing.MockClock, int] = WeakKeyDictionary()


@contextmanager
def clock_held() -> Iterator[None]:
    """The run's clock does not jump within the block. Blocks may overlap."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    _hold(clock, 1)
    try:
        yield
    finally:
        _hold(clock, -1)


def _hold(clock: trio.testing.MockClock, change: int) -> None:
    _HOLDS[clock] = holds = _HOLDS.get(clock, 0) + change
    clock.autojump_threshold = float("inf") if holds else 0.0


@contextmanager
def threads_hold_the_clock() -> Iterator[None]:
    """Whoever waits for ``trio.to_thread.run_sync`` holds the clock."""
    in_thread = trio.to_thread.run_sync

    async def run_sync(*args: Any, **options: Any) -> Any:
        with clock_held():
            return await in_thread(*args, **options)

    trio.to_thread.run_sync = run_sync  # type: ignore[assignment]
    try:
        yield
    finally:
        trio.to_thread.run_sync = in_thread


def run(test: Callable[..., Awaitable[T]], *args: Any) -> T:
    """``trio.run`` in virtual time."""
    with threads_hold_the_clock():
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(test, *args, clock=clock)
