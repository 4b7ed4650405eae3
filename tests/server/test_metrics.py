"""What the server counts beside what the front's tests look at."""

from __future__ import annotations

import gc
from typing import Any, cast

from adapters.server.metrics import Metrics
from core.actors.session import Session
from core.session import events as e


class Stand:
    """In place of a session."""


def heard(metrics: Metrics, session: Any) -> None:
    stopped = e.SpeechStopped(1, 100, "item", timings=(("last_speech", 77),))
    metrics.stepped(session, (e.Record(1, 1, 0, stopped),))


def test_the_end_of_speech_is_told_once() -> None:
    metrics, session = Metrics(), cast(Session, Stand())
    heard(metrics, session)
    assert (metrics.take_speech_end(session), metrics.take_speech_end(session)) == (77, None)


def test_nothing_is_kept_of_sessions_that_leave_without_a_word() -> None:
    """A session that moves to another server closes nothing in its log."""
    metrics = Metrics()
    for _ in range(100):
        heard(metrics, Stand())
    gc.collect()
    assert len(metrics._speech_ended_ns) == 0
