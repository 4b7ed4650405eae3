"""The server's log: one format, and nothing in it that anybody said, also where something crashes.

An exception's text may quote what it choked on. So wherever Python or a library would print a traceback, the log gets the
exception's kind and its frames (core.ports.described), and no text.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from core.ports.described import described

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
CHATTY = ("trio-websocket", "alembic")

log = logging.getLogger("duologue.serve")


class WordlessFormatter(logging.Formatter):
    """Tracebacks without the exceptions' texts."""

    def formatException(self, ei: Any) -> str:
        """``ei`` is sys.exc_info()."""
        return "" if ei[1] is None else described(ei[1])


def set_up_log(level: str) -> None:
    """To standard error, from ``level`` on."""
    handler = logging.StreamHandler()
    handler.setFormatter(WordlessFormatter(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for library in CHATTY:
        logging.getLogger(library).setLevel(logging.WARNING)


@contextmanager
def wordless_crashes() -> Iterator[None]:
    """A fault of ours that ends a thread, or leaves the block and ends the process, is logged like any other."""
    usual = threading.excepthook
    threading.excepthook = _log_thread
    try:
        yield
    except BaseException:
        sys.excepthook = _log_end
        raise
    finally:
        threading.excepthook = usual


def _log_thread(ending: threading.ExceptHookArgs) -> None:
    if ending.exc_value is not None:
        name = ending.thread.name if ending.thread is not None else "a thread"
        log.critical("thread %s ended by a fault of ours: %s", name, described(ending.exc_value))


def _log_end(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    log.critical("the server ended by a fault of ours: %s", described(error))
