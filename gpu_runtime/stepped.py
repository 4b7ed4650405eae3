"""Models written as a pure machine: time is an argument, and nothing sleeps.

A ``SteppedModel`` takes messages and ticks and returns what it has to say, so the same code runs in a worker process
(``ThreadShell``: one thread that waits for the next instant) and inside a deterministic simulation
(``gpu_runtime.host.InlineRuntime``: a trio task under a mock clock). A machine may also return a ``Fault``, which the
shell carries out: it is how tests make a worker die or hang at an exact unit.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from core.ports.runtime import Capabilities, FromRuntime, ModelStatistics, ToRuntime
from gpu_runtime.plugin import Emit


class Fault(Enum):
    """What a machine may ask its shell to suffer."""

    DIE = "die"
    """The process is killed, as by the kernel."""
    STALL = "stall"
    """The process stops doing anything, but stays."""


Said = FromRuntime | Fault


class SteppedModel(Protocol):
    """A model as a step machine. ``now_ns`` is a monotonic clock that never runs backwards between calls."""

    @property
    def capabilities(self) -> Capabilities:
        """Fixed from the start."""

    def handle(self, message: ToRuntime, now_ns: int) -> Sequence[Said]:
        """Take a message; what is to be said at once."""

    def due_ns(self) -> int | None:
        """When ``tick`` has something to do; None: not before the next message."""

    def tick(self, now_ns: int) -> Sequence[Said]:
        """What is to be said now."""

    def statistics(self) -> ModelStatistics:
        """Now."""


class ThreadShell:
    """Runs a SteppedModel inside a worker process, as a ``gpu_runtime.plugin.Model``.

    One lock is held while the machine steps and while its words are emitted: so their order on the socket is the
    machine's order, and an abort that was handled is the last word on its lane.
    """

    def __init__(self, machine: SteppedModel, emit: Emit) -> None:
        self._machine = machine
        self._emit = emit
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="model-clock", daemon=True)
        self._thread.start()

    @property
    def capabilities(self) -> Capabilities:
        """The machine's."""
        return self._machine.capabilities

    def handle(self, message: ToRuntime) -> None:
        """Step the machine with a message."""
        with self._changed:
            self._say(self._machine.handle(message, time.monotonic_ns()))
            self._changed.notify()

    def statistics(self) -> ModelStatistics:
        """The machine's."""
        with self._changed:
            return self._machine.statistics()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                due_ns = self._machine.due_ns()
                now_ns = time.monotonic_ns()
                if due_ns is None:
                    self._changed.wait()
                elif due_ns > now_ns:
                    self._changed.wait((due_ns - now_ns) / 1e9)
                else:
                    self._say(self._machine.tick(now_ns))

    def _say(self, said: Sequence[Said]) -> None:
        for word in said:
            if isinstance(word, Fault):
                # SIGSTOP and not a sleep: pings must go unanswered too, whichever thread would answer them.
                os.kill(os.getpid(), signal.SIGKILL if word is Fault.DIE else signal.SIGSTOP)
            else:
                self._emit(word)
