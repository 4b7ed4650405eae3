"""SQLite checkpoints, off the writer's path.

A checkpoint copies what the write-ahead log holds into the database file, and syncs both: some ms on a good day, 180 on a
bad one. SQLite would run it inside some unlucky commit. Here a thread of its own runs it every second, on a connection of
its own, while the writer goes on appending to the log.

The log starts again from its beginning only when a write finds all of it copied, which under steady load may never
happen by itself. Past LOG_FRAMES_MAX the writer therefore runs one checkpoint between two groups; little is left to copy.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable

from sqlalchemy import Engine

INTERVAL_S = 1.0
LOG_FRAMES_MAX = 16_384
"""Frames of one page (4 KiB): 64 MiB."""

logger = logging.getLogger(__name__)


class Checkpointer:
    """The thread, and the writer's part. ``measure`` is called in the thread each second: another look at the disk."""

    def __init__(
        self,
        engine: Engine,
        measure: Callable[[], None] = lambda: None,
        interval_s: float = INTERVAL_S,
        log_frames_max: int = LOG_FRAMES_MAX,
    ) -> None:
        self._engine = engine
        self._measure = measure
        self._interval_s = interval_s
        self._log_frames_max = log_frames_max
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._overgrown = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-checkpointer")

    def start(self) -> None:
        """Call once."""
        self._thread.start()

    def close(self) -> None:
        """End the thread. Blocks for the checkpoint that runs, if one does."""
        self._closing.set()
        self._thread.join()

    def before_group(self) -> None:
        """The writer calls this before each group, outside of any transaction."""
        if self._overgrown.is_set():
            self._checkpoint()
        self._dirty.set()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._measure()
            if self._dirty.is_set():
                self._dirty.clear()
                self._checkpoint()

    def _checkpoint(self) -> None:
        try:
            log_frames = checkpoint(self._engine)
        except sqlite3.Error as fault:
            # Nothing is lost: the log keeps what was not copied, and the next second tries again.
            logger.warning("checkpoint failed: %s", getattr(fault, "sqlite_errorname", type(fault).__name__))
            return
        if log_frames > self._log_frames_max:
            self._overgrown.set()
        else:
            self._overgrown.clear()


def checkpoint(engine: Engine) -> int:
    """Copy what can be copied without making anyone wait; the frames of the log, or 0 when all of them are copied.
    Raises sqlite3.Error."""
    # Not through SQLAlchemy's connection: that would begin a transaction, and a checkpoint must be in none.
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
        ((_busy, frames, copied),) = cursor.fetchall()
        cursor.close()
    finally:
        connection.close()
    return int(frames) if frames != copied else 0
