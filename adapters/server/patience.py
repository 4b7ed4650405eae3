"""How long a peer is waited for, counted in looks.

A clock goes on while nobody here runs: when the process was stopped, or paused together with its machine, or its event loop
was far behind. A plain time limit has then passed before anything can be read that the peer sent meanwhile, or written that
it could now take, and ends a connection that has nothing wrong with it. Looks are missed in such a time. Sessions' deadlines
are put off in another way (core.actors.alarm).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

LOOK_S = 0.25


@attrs.define
class Patience:
    """``look`` runs as long as its limits are in use."""

    _looks_left: dict[trio.CancelScope, int] = attrs.field(factory=dict)

    @contextmanager
    def move_on_after(self, limit_s: float) -> Iterator[trio.CancelScope]:
        """As trio's."""
        scope = trio.CancelScope()
        self._looks_left[scope] = math.ceil(limit_s / LOOK_S) + 1  # the first may come at once
        try:
            with scope:
                yield scope
        finally:
            del self._looks_left[scope]

    @contextmanager
    def fail_after(self, limit_s: float) -> Iterator[None]:
        """As trio's. Raises trio.TooSlowError."""
        with self.move_on_after(limit_s) as scope:
            yield
        if scope.cancelled_caught:
            raise trio.TooSlowError

    async def look(self) -> None:
        """Until it is cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            for scope in self._looks_left:
                self._looks_left[scope] -= 1
                if self._looks_left[scope] <= 0:
                    scope.cancel()
