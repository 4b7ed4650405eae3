"""The worker's only writer: a bounded queue of frames and the thread that puts them on the socket."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections import deque

from gpu_runtime.protocol import FROM_WORKER_CODEC, FromWorker

QUEUE_ITEMS_MAX = 8_192
QUEUE_BYTES_MAX = 32 * 1024 * 1024
FULL_TIMEOUT_S = 10.0
WRITE_BYTES = 256 * 1024
EXIT_HOST_STALLED = 71


class Writer:
    """Frames in the order of ``put``, whichever thread calls it.

    While the queue is full, ``put`` holds its caller back: a model may not run ahead of a host that does not read. A
    host that reads nothing for FULL_TIMEOUT_S is as good as gone, and the process ends.
    """

    def __init__(self, connection: socket.socket, full_timeout_s: float = FULL_TIMEOUT_S) -> None:
        self._connection = connection
        self._full_timeout_s = full_timeout_s
        self._changed = threading.Condition()
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, message: FromWorker) -> None:
        """Queue a message. Dropped when the host is gone. Raises ProtocolError for what is no message to the host."""
        frame = FROM_WORKER_CODEC.encode(message)
        with self._changed:
            if not self._changed.wait_for(lambda: self._room(frame) or self._closed, self._full_timeout_s):
                sys.stderr.write(f"the host has read nothing for {self._full_timeout_s:g} s\n")
                sys.stderr.flush()
                os._exit(EXIT_HOST_STALLED)
            if not self._closed:
                self._frames.append(frame)
                self._bytes += len(frame)
                self._changed.notify_all()

    def close(self) -> None:
        """Write what is queued, then end the thread. A host that does not read keeps us for FULL_TIMEOUT_S at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(self._full_timeout_s)

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
                    self._bytes = 0
                    self._changed.notify_all()
                return

    def _take(self) -> bytes:
        """Wait for frames; several small ones go out together. Empty: closed, and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._closed)
            taken: list[bytes] = []
            size = 0
            while self._frames and (not taken or size + len(self._frames[0]) <= WRITE_BYTES):
                taken.append(self._frames.popleft())
                size += len(taken[-1])
            self._bytes -= size
            self._changed.notify_all()
        return b"".join(taken)
