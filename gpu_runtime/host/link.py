"""What a host needs of a worker, wherever that runs: a stream of bytes, its end in words, and the power to kill it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from gpu_runtime.plugin import Progress


class ByteStream(Protocol):
    """The host's end. ``trio.SocketStream`` is one. A broken one raises trio.BrokenResourceError or ClosedResourceError."""

    async def send_all(self, data: bytes) -> None:
        """Returns when the worker's side has taken them: that is the back-pressure."""

    async def receive_some(self, max_bytes: int) -> bytes | bytearray:
        """Wait for bytes; none at the end."""

    async def send_eof(self) -> None:
        """Nothing more will come: the worker lets go."""


class Link(Protocol):
    """One worker from its start to its end."""

    @property
    def stream(self) -> ByteStream: ...

    @property
    def pid(self) -> int:
        """Its process, on its own machine."""

    @property
    def last_words(self) -> str:
        """The last line that it printed, as far as it can be known here; for a person, never for a session's log."""

    async def log_output(self) -> None:
        """Put what it prints into our log, until it ends."""

    async def wait(self) -> str:
        """Wait for its end; how it ended, in words. Safe to cancel."""

    def kill(self) -> None:
        """SIGKILL, or the like of it."""

    async def close(self) -> None:
        """See to it that it is gone, and free everything. Not to be cancelled."""


class NoWorker(Exception):
    """None could be started. The text says why, and what to do."""


Starter = Callable[[Progress], Awaitable[Link]]
"""Starts one worker, or waits for a place where it can run. Raises NoWorker."""
