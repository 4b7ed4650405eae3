"""The worker's only writer: a bounded queue of frames and the thread that puts them on the socket."""

from __future__ import annotations

import socket
import threading
from collections import deque

from gpu_runtime.protocol import FROM_WORKER_CODEC, FromWorker

QUEUE_ITEMS_MAX = 8_192
QUEUE_BYTES_MAX = 32 * 1024 * 1024
CLOSE_TIMEOUT_S = 10.0
WRITE_BYTES = 256 * 1024


class Writer:
    """Frames in the order of ``put``, whichever thread calls it.

    While the queue is full, ``put`` holds its caller back, for as long as it takes: a model may not run ahead of a host
    that reads slowly, or is stopped for a while and will go on. A host that is gone is another matter: its end of the
    socket breaks.
    """

    def __init__(self, connection: socket.socket, close_timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        self._connection = connection
        self._close_timeout_s = close_timeout_s
        self._changed = threading.Condition()
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._first: dict[type, bytes] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, message: FromWorker) -> None:
        """Queue a message. Dropped when the host is gone. Raises ProtocolError for what is no message to the host."""
        frame = FROM_WORKER_CODEC.encode(message)
        with self._changed:
            self._changed.wait_for(lambda: self._room(frame) or self._closed)
            if not self._closed:
                self._frames.append(frame)
                self._bytes += len(frame)
                self._changed.notify_all()

    def put_first(self, message: FromWorker) -> None:
        """Queue a message about the worker itself: it overtakes all that is of sessions, and never waits. It replaces one
        of its kind that was not written yet."""
        frame = FROM_WORKER_CODEC.encode(message)
        with self._changed:
            if not self._closed:
                self._first[type(message)] = frame
                self._changed.notify_all()

    def close(self) -> None:
        """Write what is queued, then end the thread. A host that does not read keeps us for ``close_timeout_s`` at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(self._close_timeout_s)

    def _room(self, frame: bytes) -> bool:
        fits = self._bytes + len(frame) <= QUEUE_BYTES_MAX and len(self._frames) < QUEUE_ITEMS_MAX
        return fits or not self._frames

    def _run(self) -> None:
        while data := self._take():
            try:
                self._connection.sendall(data)
            except OSError:  # the host is gone; the main thread sees it too
                with self._changed:
                    self._closed = True
                    self._frames.clear()
                    self._first.clear()
                    self._bytes = 0
                    self._changed.notify_all()
                return

    def _take(self) -> bytes:
        """Wait for frames; several small ones go out together. Empty: closed, and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._first or self._closed)
            taken = list(self._first.values())
            self._first.clear()
            size = 0
            while self._frames and (not size or size + len(self._frames[0]) <= WRITE_BYTES):
                taken.append(self._frames.popleft())
                size += len(taken[-1])
            self._bytes -= size
            self._changed.notify_all()
        return b"".join(taken)
