"""Taking connections, also when the process has no file descriptor left for one more.

The system then refuses ``accept`` at once, again and again. Whoever waits to connect waits; conversations that go on are not
touched; and the log has one line, not ten a second.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections.abc import Callable

import trio

log = logging.getLogger("duologue.server")

CAPACITY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
RETRY_S = 0.1
TELL_EVERY_S = 60.0
DESCRIPTORS_BESIDE = 256
"""What a server opens beside its connections: the store, the workers, files."""


class PatientListener(trio.abc.Listener[trio.SocketStream]):
    """``listener``, of which nobody hears that there is no room. ``on_refused`` is called each time."""

    def __init__(self, listener: trio.SocketListener, on_refused: Callable[[], None]) -> None:
        self._listener = listener
        self._on_refused = on_refused
        self._told_at = -TELL_EVERY_S
        self._untold = 0

    async def accept(self) -> trio.SocketStream:
        """The next connection. Raises OSError for anything but a lack of room."""
        while True:
            try:
                return await self._listener.accept()
            except OSError as error:
                if error.errno not in CAPACITY:
                    raise
                self._refused(error.errno or 0)
            await trio.sleep(RETRY_S)

    def _refused(self, code: int) -> None:
        self._on_refused()
        self._untold += 1
        now = trio.current_time()
        if now - self._told_at >= TELL_EVERY_S:
            text = "no room for one more connection (%s, %d times): raise the limit of open files (ulimit -n)"
            log.error(text, os.strerror(code), self._untold)
            self._told_at, self._untold = now, 0

    async def aclose(self) -> None:
        """Listen no more."""
        await self._listener.aclose()


def allow_descriptors(connections_max: int) -> None:
    """Raise the process' own limit as far as that many connections need and the system allows; say so when it does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + DESCRIPTORS_BESIDE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("the system allows %d open files: %d connections need %d", allowed, connections_max, wanted)
