"""What an event makes the world do: effects of a record, from the state after it. Pure, so a replay can compare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.session import effects as fx
from core.session import events as e
from core.session.history import history
from core.session.state import SessionState


def effects_of(record: e.Record, state: SessionState) -> tuple[fx.Effect, ...]:
    """The effects of ``record``, in order; ``state`` is the one after it."""
    react = _REACT.get(type(record.event))
    return () if react is None else react(record.event, state)


def _config_changed(event: e.ConfigChanged, state: SessionState) -> tuple[fx.Effect, ...]:
    if not state.runtime_up:
        return ()
    return (fx.ConfigureSession(state.session_id, event.config.input_format, event.config.turn_detection),)


def _runtime_changed(event: e.RuntimeChanged, state: SessionState) -> tuple[fx.Effect, ...]:
    if not event.up:
        return ()
    pending = tuple(state.input.pending)
    start_ms = pending[0].start_ms if pending else state.input.now_ms
    opened = fx.OpenSession(state.session_id, state.config.input_format, state.config.turn_detection, start_ms)
    fed = (
        fx.FeedAudio(state.session_id, state.epoch, chunk.digest, chunk.start_ms, chunk.audio_ms) for chunk in pending
    )
    return (opened, *fed)


def _append(event: e.Append, state: SessionState) -> tuple[fx.Effect, ...]:
    if not state.runtime_up or event.kind != "audio":
        return ()
    return (fx.FeedAudio(state.session_id, state.epoch, event.digest, event.start_ms, event.audio_ms),)


def _input_cleared(event: e.InputCleared, state: SessionState) -> tuple[fx.Effect, ...]:
    return (fx.ClearTurn(state.session_id),) if state.runtime_up else ()


def _commit(event: e.Commit, state: SessionState) -> tuple[fx.Effect, ...]:
    if not state.runtime_up or not event.speech:
        return ()
    return (fx.CommitTurn(state.session_id, event.item_id, event.start_ms, event.end_ms, event.segment),)


def _lane_opened(event: e.LaneOpened, state: SessionState) -> tuple[fx.Effect, ...]:
    return (_open_lane(state),)


def _lane_truncated(event: e.LaneTruncated, state: SessionState) -> tuple[fx.Effect, ...]:
    return (_open_lane(state),)


def _open_lane(state: SessionState) -> fx.OpenLane:
    config = state.config
    return fx.OpenLane(state.session_id, state.epoch, config.instructions, config.voice, history(state))


def _response_started(event: e.ResponseStarted, state: SessionState) -> tuple[fx.Effect, ...]:
    instructions = event.instructions if event.instructions is not None else state.config.instructions
    return (
        fx.Respond(
            state.session_id,
            state.epoch,
            event.response_id,
            instructions,
            history(state, event.answers),
            event.modalities,
            event.max_output_tokens,
        ),
    )


def _epoch_bump(event: e.EpochBump, state: SessionState) -> tuple[fx.Effect, ...]:
    fence = (fx.FenceOutput(event.epoch, event.cursor),) if event.disposition == "cut" else ()
    abort = (fx.AbortLane(state.session_id, event.epoch - 1),) if state.runtime_up else ()
    return (*fence, *abort)


def _session_closed(event: e.SessionClosed, state: SessionState) -> tuple[fx.Effect, ...]:
    gone = (fx.CloseSession(state.session_id),) if state.runtime_up else ()
    return (*gone, fx.CloseSocket(1000, event.reason), fx.EndSession(event.reason))


_REACT: dict[type, Callable[[Any, SessionState], tuple[fx.Effect, ...]]] = {
    e.ConfigChanged: _config_changed,
    e.RuntimeChanged: _runtime_changed,
    e.Append: _append,
    e.InputCleared: _input_cleared,
    e.Commit: _commit,
    e.LaneOpened: _lane_opened,
    e.LaneTruncated: _lane_truncated,
    e.ResponseStarted: _response_started,
    e.EpochBump: _epoch_bump,
    e.SessionClosed: _session_closed,
}
"""Events that are not in the table change only the state."""
