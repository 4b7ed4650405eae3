"""A log that is read back: the same whatever its pages are, and what is left of its stream is what a client may ask for."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wire.duplex.projection import DuplexProjection
from core.actors.folding import Folded, begin_fold
from core.actors.outbox import Outbox
from core.session import commands as c
from core.session import events as e
from core.session.apply import apply, fold
from core.session.config import SessionConfig
from core.session.state import SessionState
from tests.wire.stories import MS, Story
from tests.wire.test_stream_properties import ACTIONS, act

WINDOW_MS = 2_000


def _told(actions: list[tuple[Any, ...]]) -> Story:
    story = Story(DuplexProjection(), SessionConfig(replay_window_ms=WINDOW_MS))
    for action in actions:
        act(story, action)
    return story


def _folded(records: list[e.Record], page: int) -> Folded:
    opened = records[0].event
    assert isinstance(opened, e.SessionOpened)
    folded = begin_fold(opened, DuplexProjection())
    for first in range(0, len(records), page):
        folded.take(records[first : first + page], records[-1].at_ns)
    return folded


def _whole_stream(records: list[e.Record]) -> Outbox:
    """Every frame, each cut at its place, and nothing let go."""
    outbox, state, projection = Outbox(2**40, 2**40), SessionState(), DuplexProjection()
    for record in records:
        apply(state, record)
        outbox.restore(projection.fold(record, state), record.at_ns)
        if isinstance(record.event, e.EpochBump) and record.event.disposition == "cut":
            outbox.cut(record.event.epoch, record.event.cursor, 0)
    return outbox


@given(actions=st.lists(ACTIONS, max_size=60), page=st.integers(1, 40))
def test_a_log_folds_to_the_same_in_pages_of_any_size(actions: list[tuple[Any, ...]], page: int) -> None:
    records = _told(actions).records
    in_pages, at_once = _folded(records, page), _folded(records, len(records))
    assert in_pages.state == at_once.state == fold(records)
    assert in_pages.projection.number == at_once.projection.number
    assert attrs.asdict(in_pages.outbox) == attrs.asdict(at_once.outbox)
    assert in_pages.holders == at_once.holders


@given(actions=st.lists(ACTIONS, max_size=60), page=st.integers(1, 40))
def test_what_is_kept_of_a_stream_is_what_lies_in_the_replay_window(actions: list[tuple[Any, ...]], page: int) -> None:
    records = _told(actions).records
    oldest_ns = records[-1].at_ns - WINDOW_MS * MS
    folded, whole = _folded(records, page).outbox, _whole_stream(records)
    assert list(folded.entries) == [entry for entry in whole.entries if entry.at_ns >= oldest_ns]
    assert (folded.head, folded.number, folded.cut_epoch) == (whole.head, whole.number, whole.cut_epoch)
    assert folded.first_number == (folded.entries[0].frame.number if folded.entries else folded.head + 1)
    assert folded.durable == records[-1].position


@pytest.mark.parametrize(("silent_ms", "kept"), [(WINDOW_MS, True), (WINDOW_MS + 1, False)])
def test_the_window_reaches_back_from_the_last_record_also_where_that_adds_nothing_to_the_stream(
    silent_ms: int, kept: bool
) -> None:
    story = _told([("ask",)])
    asked = story.projection.number
    story.wait(silent_ms)
    story.do(c.Detach(1, "gone"))
    assert story.projection.number == asked, "nothing is sent to nobody"
    for page in (len(story.records), len(story.records) - 1):
        assert _folded(story.records, page).outbox.knows(asked - 1) is kept
