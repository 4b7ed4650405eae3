"""What an ear says, in the order of its audio, although some of it has to wait for a transcript."""

from __future__ import annotations

import threading
from collections import deque

import attrs

from core.ports.runtime import FromRuntime, SpeechGoesOn
from gpu_runtime.plugin import Emit


@attrs.define(eq=False)
class Place:
    """A place in the order that is kept for a message to come."""

    message: FromRuntime | None = None


class Outbox:
    """Messages leave in the order in which they or their places came in. Safe to use from several threads."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._line: deque[Place] = deque()

    @property
    def kept(self) -> int:
        """How many messages and places wait."""
        return len(self._line)

    def say(self, message: FromRuntime) -> None:
        """Send, behind everything that waits. A SpeechGoesOn that has to wait replaces the one in front of it."""
        with self._lock:
            last = self._line[-1].message if self._line else None
            if isinstance(message, SpeechGoesOn) and isinstance(last, SpeechGoesOn):
                self._line[-1].message = message
            else:
                self._line.append(Place(message))
            self._flush()

    def keep_place(self) -> Place:
        """A place for a message that is not known yet."""
        with self._lock:
            place = Place()
            self._line.append(place)
            return place

    def fill(self, place: Place, message: FromRuntime) -> None:
        """Put the message in; nothing happens when the outbox was cleared meanwhile."""
        with self._lock:
            place.message = message
            self._flush()

    def clear(self) -> None:
        """Forget everything that waits."""
        with self._lock:
            self._line.clear()

    def _flush(self) -> None:
        # emitting under the lock is what keeps two threads' messages in order
        while self._line and (message := self._line[0].message) is not None:
            self._line.popleft()
            self._emit(message)
