"""Hanging up on a PostgreSQL that says nothing.

A database whose machine is gone is found out by the network. One that is there and stands still (stopped, swapped out, a disk
that hangs below it) is not: whoever asked it something would wait for ever, and no setting of the database's own could end
that. So a thread looks at what has been waiting for an answer for LIMIT_S, and shuts its connection down. To whoever waits
this is a connection that broke, and so a database that is away: appends then have the store's patience.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, event

LIMIT_S = 10.0
"""More than a statement may wait for a lock (store.sql.engines.BUSY_TIMEOUT_MS)."""
LOOK_EVERY_S = 0.5

logger = logging.getLogger(__name__)


class StallGuard:
    """The thread, and what waits for an answer now. ``driver_error``: what the driver raises over a connection that broke."""

    def __init__(self, driver_error: type[Exception]) -> None:
        self._driver_error = driver_error
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Any, float]] = {}
        """A driver's connection by its id, and since when. Guarded by _lock. Invariant: those in here are open."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-guard")

    def start(self) -> None:
        """Call once."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()

    @contextmanager
    def over(self, driver: Any) -> Iterator[None]:
        """All that happens to the driver's connection in the block is one wait."""
        self._begin(driver)
        try:
            yield
        finally:
            self._end(driver)

    def watch(self, engine: Engine) -> None:
        """Each statement that goes through ``engine`` is a wait of its own."""

        def begin(connection: Connection, *_: object) -> None:
            self._begin(connection.connection.driver_connection)

        def end(connection: Connection, *_: object) -> None:
            self._end(connection.connection.driver_connection)

        def fail(context: Any) -> None:
            if context.connection is not None:
                end(context.connection)

        event.listen(engine, "before_cursor_execute", begin)
        event.listen(engine, "after_cursor_execute", end)
        event.listen(engine, "handle_error", fail)

    def _begin(self, driver: Any) -> None:
        with self._lock:
            self._waiting[id(driver)] = driver, time.monotonic()

    def _end(self, driver: Any) -> None:
        with self._lock:
            self._waiting.pop(id(driver), None)

    def _run(self) -> None:
        while not self._closing.wait(LOOK_EVERY_S):
            with self._lock:
                late = time.monotonic() - LIMIT_S
                for driver in [driver for driver, since in self._waiting.values() if since < late]:
                    del self._waiting[id(driver)]
                    logger.warning("the database has not answered for %g s: its connection is given up", LIMIT_S)
                    with suppress(OSError, self._driver_error):  # it has just broken by itself
                        _hang_up(driver)


def _hang_up(driver: Any) -> None:
    if driver.closed:
        return
    # Not ours to close: whoever waits on it finds it at its end.
    with socket.socket(fileno=os.dup(driver.fileno())) as found:
        found.shutdown(socket.SHUT_RDWR)
