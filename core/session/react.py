"""What an event makes the world do: effects of a record, from the state after it. Pure, so a replay can compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from core.session import effects as fx
from core.session import events as e
from core.session.config import AUDIO, IMAGE, REFERENCE_AUDIO, TEXT, AudioFormat, TurnDetection
from core.session.history import history
from core.session.state import Chunk, Image, SessionState


def effects_of(record: e.Record, state: SessionState) -> tuple[fx.Effect, ...]:
    """The effects of ``record``, in order; ``state`` is the one after it."""
    react = _REACT.get(type(record.event))
    return () if react is None else react(record.event, state)


def _config_changed(event: e.ConfigChanged, state: SessionState) -> tuple[fx.Effect, ...]:
    if not state.runtime_up:
        return ()
    config = event.config
    return (
        fx.ConfigureSession(
            state.session_id, config.input_format, config.turn_detection, config.tools, config.tool_choice
        ),
    )


def _runtime_changed(event: e.RuntimeChanged, state: SessionState) -> tuple[fx.Effect, ...]:
    if not event.up:
        return ()
    ear = _Ear(state)
    return (ear.opened(), *_parts_told(state), *ear.fed(), *_parts_pending(state))


class _Ear:
    """What a new worker's ear must hear of a session: committed turns whose transcript the log lacks, so that it reads them,
    and then what is pending. No turn may be found a second time, so the detector comes only behind the turns; and
    every chunk is heard in the format that it was sent in."""

    def __init__(self, state: SessionState) -> None:
        config, side = state.config, state.input
        self._state = state
        self._turns, self._pending = side.unread, tuple(side.pending)
        chunks = (*(chunk for turn in side.unread.values() for chunk in turn.chunks), *self._pending)
        self._start_ms = chunks[0].start_ms if chunks else side.now_ms
        self._format = chunks[0].format if chunks else config.input_format
        self._detection = None if side.unread else config.turn_detection

    def opened(self) -> fx.OpenSession:
        config = self._state.config
        return fx.OpenSession(
            self._state.session_id, self._format, self._detection, self._start_ms, config.tools, config.tool_choice
        )

    def fed(self) -> Iterator[fx.Effect]:
        state, config = self._state, self._state.config
        for item_id, turn in self._turns.items():
            yield from self._chunks(turn.chunks, None)
            yield fx.CommitTurn(state.session_id, item_id, turn.start_ms, turn.end_ms)
        yield from self._chunks(self._pending, config.turn_detection)
        yield from self._configured(config.input_format, config.turn_detection)

    def _chunks(self, chunks: Iterable[Chunk], detection: TurnDetection | None) -> Iterator[fx.Effect]:
        state = self._state
        for chunk in chunks:
            yield from self._configured(chunk.format, detection)
            yield fx.FeedAudio(state.session_id, state.epoch, chunk.digest, chunk.start_ms, chunk.audio_ms)

    def _configured(self, sound: AudioFormat, detection: TurnDetection | None) -> Iterator[fx.ConfigureSession]:
        if (sound, detection) != (self._format, self._detection):
            self._format, self._detection = sound, detection
            config = self._state.config
            yield fx.ConfigureSession(self._state.session_id, sound, detection, config.tools, config.tool_choice)


def _parts_told(state: SessionState) -> tuple[fx.FeedPart, ...]:
    """The reference voice, and what the history shows."""
    reference = (_part(state, REFERENCE_AUDIO, state.reference),) if state.reference is not None else ()
    shown = (_part(state, IMAGE, image, item_id) for item_id in state.shown for image in state.items[item_id].images)
    return (*reference, *shown)


def _parts_pending(state: SessionState) -> tuple[fx.FeedPart, ...]:
    side = state.input
    typed = (fx.FeedPart(state.session_id, state.epoch, TEXT, "", "", side.now_ms, "", side.typed),)
    return (*(_part(state, IMAGE, image) for image in side.images), *(typed if side.typed else ()))


def _part(state: SessionState, kind: str, image: Image, item_id: str = "") -> fx.FeedPart:
    return fx.FeedPart(state.session_id, state.epoch, kind, image.digest, image.media_type, image.start_ms, item_id)


def _append(event: e.Append, state: SessionState) -> tuple[fx.Effect, ...]:
    if not state.runtime_up:
        return ()
    if event.kind == AUDIO:
        return (fx.FeedAudio(state.session_id, state.epoch, event.digest, event.start_ms, event.audio_ms),)
    return (
        fx.FeedPart(
            state.session_id,
            state.epoch,
            event.kind,
            event.digest,
            event.media_type,
            event.start_ms,
            event.item_id,
            event.text,
        ),
    )


def _input_cleared(event: e.InputCleared, state: SessionState) -> tuple[fx.Effect, ...]:
    return (fx.ClearTurn(state.session_id),) if state.runtime_up else ()


def _commit(event: e.Commit, state: SessionState) -> tuple[fx.Effect, ...]:
    if not state.runtime_up or not event.speech:
        return ()
    return (fx.CommitTurn(state.session_id, event.item_id, event.start_ms, event.end_ms, event.segment),)


def _lane_opened(event: e.LaneOpened, state: SessionState) -> tuple[fx.Effect, ...]:
    return (_open_lane(state),)


def _lane_truncated(event: e.LaneTruncated, state: SessionState) -> tuple[fx.Effect, ...]:
    if state.can_truncate:
        return (fx.TruncateLane(state.session_id, state.epoch, event.item_id, event.chars),)
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
            event.tools,
            event.tool_choice,
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
