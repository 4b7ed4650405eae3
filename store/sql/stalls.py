"""Hanging up on a PostgreSQL that says nothing.

A database whose machine is gone is found out by the network. One that is there and stands still (stopped, swapped out, a disk
that hangs below it) is not: whoever asked it something would wait for ever, and no setting of the database's own could end
that. So a thread looks at what has been waiting for an answer for LIMIT_S (what takes long by its nature: for longer), and
shuts its connection down. To whoever waits this is a connection that broke, and so a database that is away: appends then
have the store's patience.
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
WORK_LIMIT_S = 120.0
"""For a whole log that is brought in, replaced or thrown away: one wait, of many statements and much data."""
VACUUM_LIMIT_S = 1_800.0
"""PostgreSQL says nothing before it is through with all tables. One that is given up on goes on there all the same."""
LOOK_EVERY_S = 0.5

logger = logging.getLogger(__name__)


class StallGuard:
    """The thread, and what waits for an answer now. ``driver_error``: what the driver raises over a connection that broke."""

    def __init__(self, driver_error: type[Exception]) -> None:
        self._driver_error = driver_error
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Any, float, float]] = {}
        """A driver's connection by its id, since when, and how long it may be. Guarded by _lock. Invariant: those in here are
        open."""
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
    def over(self, driver: Any, limit_s: float | None = None) -> Iterator[None]:
        """All that happens to the driver's connection in the block is one wait, of LIMIT_S if not of ``limit_s``."""
        self._begin(driver, limit_s)
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

    def _begin(self, driver: Any, limit_s: float | None = None) -> None:
        with self._lock:
            self._waiting[id(driver)] = driver, time.monotonic(), LIMIT_S if limit_s is None else limit_s

    def _end(self, driver: Any) -> None:
        with self._lock:
            self._waiting.pop(id(driver), None)

    def _run(self) -> None:
        while not self._closing.wait(LOOK_EVERY_S):
            with self._lock:
                now = time.monotonic()
                late = [(driver, limit_s) for driver, since, limit_s in self._waiting.values() if since + limit_s < now]
                for driver, limit_s in late:
                    del self._waiting[id(driver)]
                    logger.warning("the database has not answered for %g s: its connection is given up", limit_s)
                    with suppress(OSError, self._driver_error):  # it has just broken by itself
                        _hang_up(driver)


def _hang_up(driver: Any) -> None:
    if driver.closed:
        return
    # Not ours to close: whoever waits on it finds it at its end.
    with socket.socket(fileno=os.dup(driver.fileno())) as found:
        found.shutdown(socket.SHUT_RDWR)
