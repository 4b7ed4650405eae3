"""What becomes of a session that meets a fault, and what the log says of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from core.ports.described import described, kind
from core.ports.store import StoreError, TermRefused

log = logging.getLogger("duologue.supervisor")


@attrs.define
class Crash:
    """``kind``: the name of what went wrong, empty while nothing did."""

    kind: str = ""


@contextmanager
def contained(session_id: str, what: str, *passing: type[Exception]) -> Iterator[Crash]:
    """The one boundary of a session: whatever goes wrong within, in its actor or with its log, is logged (``what`` says of
    the session what it means for it), and never ends the server or another session. ``passing``: what the caller is to
    hear of all the same."""
    crash = Crash()
    try:
        yield crash
    except passing:
        raise
    except Exception as error:  # noqa: BLE001 - logged, but for its text
        crash.kind = kind(error)
        log.error("session %s %s: %s", session_id, what, described(error))


def log_loss(session_id: str, error: StoreError) -> None:
    """A session's memory was thrown away, since its log cannot be written here: at once, before its socket is closed."""
    if isinstance(error, TermRefused):
        log.info("session %s is another server's now: %s", session_id, error)
    else:
        log.error("session %s lost its log: %s: %s", session_id, type(error).__name__, error)
