"""PostgreSQL's notifications of terms: a thread that listens, so that a server whose session was taken hears of it at once
and not at its next append."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from store.sql.owners import TERMS_CHANNEL
from store.sql.stalls import StallGuard

POLL_S = 0.5
"""How long closing may take."""

logger = logging.getLogger(__name__)


class TermListener:
    """``heard`` is called in the listener's thread with a session and its new term; it must not block or raise."""

    def __init__(self, engine: Engine, heard: Callable[[str, int], None], guard: StallGuard) -> None:
        self._engine = engine
        self._guard = guard
        self._heard = heard
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-listener")

    def start(self) -> None:
        """Call once."""
        self._thread.start()

    def close(self) -> None:
        """End the thread. Blocks, for POLL_S at most."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._listen()
            except (DBAPIError, self._engine.dialect.loaded_dbapi.Error) as fault:
                # Nothing is lost but time: surveys and appends find a lost term too.
                logger.info("not listening for terms: %s", type(fault).__name__)
                self._closing.wait(1.0)

    def _listen(self) -> None:
        pooled = self._engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()  # ours alone: a connection that listens must not go back to the pool
        try:
            connection.autocommit = True
            with self._guard.over(connection):
                connection.execute(f"LISTEN {TERMS_CHANNEL}")
            while not self._closing.is_set():
                for notice in connection.notifies(timeout=POLL_S, stop_after=1):
                    self._hear(notice.payload)
        finally:
            pooled.close()

    def _hear(self, payload: str) -> None:
        term, _, session = payload.partition(" ")
        if term.isdecimal():
            self._heard(session, int(term))
