"""A runtime whose queue is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.ports import runtime as rt
from tests.core.actors.stories import Story


@contextmanager
def busy_for(story: Story, kind: type | tuple[type, ...], told: list[rt.ToRuntime] | None = None) -> Iterator[None]:
    """The worker's queue is full for messages of that kind, within the block. What it takes, then and later, is ``told``."""
    runtime = story.servers[0].runtime
    usual = runtime.send
    busy = True

    def send(message: rt.ToRuntime) -> None:
        if busy and isinstance(message, kind):
            raise rt.RuntimeBusy("full")
        usual(message)
        if told is not None:
            told.append(message)

    runtime.send = send  # type: ignore[method-assign]
    yield
    busy = False
