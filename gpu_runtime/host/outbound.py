"""The bounded queue of frames to a worker.

A session has a share, so that whoever floods is the one that is refused. The share of audio and images is never more than
what is left for everybody else: ten sessions that flood have an eleventh each, and who has nothing in the queue finds room
in it. The small messages that steer (abort, pause, close ...) may use a reserve above all bounds, because a lane that
cannot be aborted is worse than a lost chunk.
"""

from __future__ import annotations

from collections import deque

import attrs
import trio

from core.ports.runtime import Feed, Part, RuntimeBusy, ToRuntime
from gpu_runtime.host.options import WorkerOptions
from gpu_runtime.protocol import TO_WORKER_CODEC

WRITE_BYTES = 64 * 1024
"""How much goes to the socket in one piece, unless a single frame is larger."""


@attrs.define
class _Load:
    """What is queued, of one session or of all."""

    items: int = 0
    bytes: int = 0

    def add(self, items: int, size: int) -> None:
        self.items += items
        self.bytes += size

    def fits(self, size: int, items_max: int, bytes_max: int) -> bool:
        return self.items < items_max and self.bytes + size <= bytes_max


class Outbound:
    """First in, first out. What is being written still counts until ``wrote``."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._frames: deque[tuple[str, bytes]] = deque()
        self._writing: list[tuple[str, bytes]] = []
        self._total = _Load()
        self._by_session: dict[str, _Load] = {}
        self._filled = trio.Event()
        self._first = b""

    @property
    def queued_items(self) -> int:
        """Frames queued or being written."""
        return self._total.items

    @property
    def queued_bytes(self) -> int:
        """Their size."""
        return self._total.bytes

    def put(self, message: ToRuntime) -> None:
        """Raises RuntimeBusy, and then nothing was queued."""
        frame = TO_WORKER_CODEC.encode(message)
        load = self._by_session.get(message.session) or _Load()
        options, steering = self._options, not isinstance(message, Feed | Part)
        items, size = (options.reserve_items, options.reserve_bytes) if steering else (0, 0)
        room = (options.queue_items_max + items, options.queue_bytes_max + size)
        share = (options.session_items_max + items, options.session_bytes_max + size)
        if not steering:
            share = (min(share[0], room[0] - self._total.items), min(share[1], room[1] - self._total.bytes))
        if not load.fits(len(frame), *share):
            raise RuntimeBusy(f"a session has {load.items} messages of {load.bytes} bytes waiting for the worker")
        if not self._total.fits(len(frame), *room):
            raise RuntimeBusy(f"{self._total.items} messages of {self._total.bytes} bytes wait for the worker")
        self._by_session[message.session] = load
        load.add(1, len(frame))
        self._total.add(1, len(frame))
        self._frames.append((message.session, frame))
        self._filled.set()

    def put_first(self, frame: bytes) -> None:
        """A frame of the host's own that overtakes all others. One at a time: it replaces the last if that still waits."""
        self._first = frame
        self._filled.set()

    async def take(self) -> bytes:
        """Wait for frames and take some, joined. Call ``wrote`` when they are on the socket."""
        while not self._frames and not self._first:
            self._filled = trio.Event()
            await self._filled.wait()
        size = 0
        while self._frames and (not self._writing or size + len(self._frames[0][1]) <= WRITE_BYTES):
            self._writing.append(self._frames.popleft())
            size += len(self._writing[-1][1])
        first, self._first = self._first, b""
        return first + b"".join(frame for _, frame in self._writing)

    def wrote(self) -> None:
        """What was taken is out."""
        for session, frame in self._writing:
            load = self._by_session[session]
            load.add(-1, -len(frame))
            self._total.add(-1, -len(frame))
            if not load.items:
                del self._by_session[session]
        self._writing.clear()

    def clear(self) -> None:
        """Forget everything: whoever it was meant for is gone."""
        self._frames.clear()
        self._writing.clear()
        self._by_session.clear()
        self._total = _Load()
        self._first = b""
