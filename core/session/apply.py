"""The fold: one small function for each event, each total (folds/). ``apply`` is the only place where a state changes.

Events are facts and cannot be refused. What the log says is taken as it is, so nothing in here looks at a clock, asks for
an id, or decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from core.session import events as e
from core.session.folds import input as user
from core.session.folds import items, link, output
from core.session.state import SessionState


class LogBroken(Exception):
    """The log is not dense: a row is missing or stands twice. This is a fault of the store, never of a client."""


def apply(state: SessionState, record: e.Record) -> SessionState:
    """Fold one record into ``state``, in place, and return it. Raises LogBroken when positions are not dense."""
    if record.position != state.position + 1:
        raise LogBroken(f"position {record.position} follows {state.position}")
    state.position = record.position
    state.at_ns = record.at_ns
    _APPLY[type(record.event)](state, record.event, record.at_ns)
    return state


def fold(records: Iterable[e.Record], state: SessionState | None = None) -> SessionState:
    """Fold a whole log, or the rest of one."""
    state = SessionState() if state is None else state
    for record in records:
        apply(state, record)
    return state


_APPLY: dict[type, Callable[[SessionState, Any, int], None]] = {
    e.SessionOpened: link.session_opened,
    e.ConfigChanged: link.config_changed,
    e.SessionClosed: link.session_closed,
    e.OwnerChanged: link.owner_changed,
    e.Attached: link.attached,
    e.TokenConfirmed: link.token_confirmed,
    e.Detached: link.detached,
    e.Append: user.append,
    e.InputCleared: user.input_cleared,
    e.SpeechStarted: user.speech_started,
    e.SpeechStopped: user.speech_stopped,
    e.InputTranscript: user.input_transcript,
    e.OverlapDecided: user.overlap_decided,
    e.Commit: user.commit,
    e.LaneOpened: output.lane_opened,
    e.LaneTruncated: output.lane_truncated,
    e.WindowSlid: items.window_slid,
    e.ResponseStarted: output.response_started,
    e.Output: output.output,
    e.ToolCalled: output.tool_called,
    e.ResponseEnded: output.response_ended,
    e.EpochBump: output.epoch_bump,
    e.OutputInvalidated: output.output_invalidated,
    e.PlaybackAck: output.playback_ack,
    e.ItemCreated: items.item_created,
    e.ItemDeleted: items.item_deleted,
    e.ItemRetrieved: items.item_retrieved,
    e.Refused: link.refused,
    e.Touched: link.touched,
    e.Paused: link.paused,
    e.Unpaused: link.unpaused,
    e.DeadlineFired: link.nothing,
    e.RuntimeChanged: link.runtime_changed,
    e.Erased: items.erased,
}
"""One function for each event type; a test holds the table total over ``events.EVENT_TYPES``."""
