"""What runs on the other machine: a worker's life as it is everywhere, and a pair of sockets between it and Ray's calls.

A worker speaks length-prefixed messages over a socket and knows nothing of Ray. So the bytes are carried: ``push`` writes
what the server sent to the worker's socket, ``pull`` waits for what the worker wrote. Both block where a socket would, and
so the worker's bounds and the server's hold each other back as they do on one machine.

A *line* is one server's use of one process. Ray may have started the actor again between two calls; then the line is
unknown, and bytes from the middle of a stream reach nobody.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import threading

from gpu_runtime.worker.main import fail_loudly, host_model

PULL_BYTES = 64 * 1024
"""Well below the 100 kB up to which Ray sends a result along with its answer."""


class LineUnknown(Exception):
    """Not the line of this process: Ray has started the actor again, or it serves another line."""


class WorkerActor:
    """The class of the Ray actor. Its calls come on several threads."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._line: str | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._status = 0
        self._ours, self._theirs = socket.socketpair()

    def open(self, line: str) -> tuple[int, str]:
        """Begin the worker's life. (its process, its machine). Raises LineUnknown when it has begun for another line."""
        with self._lock:
            if self._line is not None:
                raise LineUnknown(f"this worker serves {self._line}")
            self._line = line
        fail_loudly()
        threading.Thread(target=self._live, name="worker", daemon=True).start()
        return os.getpid(), platform.node()

    def push(self, line: str, data: bytes) -> None:
        """Bytes for the worker; returns when its socket has taken them. What comes after its end is dropped."""
        self._check(line)
        with contextlib.suppress(OSError):
            self._ours.sendall(data)

    def pull(self, line: str) -> bytes:
        """Wait for bytes of the worker's; none at its end. One call at a time."""
        self._check(line)
        try:
            return self._ours.recv(PULL_BYTES)
        except ConnectionError:
            return b""

    def let_go(self, line: str) -> None:
        """Nothing more will be pushed: the worker's life ends by itself."""
        self._check(line)
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

    def wait(self, line: str) -> int:
        """Wait for the end of the worker's life; its exit status."""
        self._check(line)
        self._ended.wait()
        return self._status

    def _live(self) -> None:
        self._status = host_model(self._model, self._theirs)
        self._theirs.close()
        self._ended.set()

    def _check(self, line: str) -> None:
        if line != self._line:
            raise LineUnknown(f"{line} is not the line of this worker")
