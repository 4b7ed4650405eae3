"""What an event makes the world do: effects of a record, from the state after it. Pure, so a replay can compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    return (_configured(state, (event.config.input_format, event.config.turn_detection)),)


def _runtime_changed(event: e.RuntimeChanged, state: SessionState) -> tuple[fx.Effect, ...]:
    if not event.up:
        return ()
    cues = _cues(state) if event.reads_again else _cues_of_before(state)
    opened, *fed = _listened(state, cues)
    return (opened, *_parts_told(state), *fed, *_parts_pending(state))


_Setting = tuple[AudioFormat, TurnDetection | None]
"""How an ear listens."""

_Cue = tuple[_Setting, fx.FeedAudio | fx.CommitTurn]


def _cues(state: SessionState) -> list[_Cue]:
    """What a new worker's ear must hear: committed turns whose transcript the log lacks, so that it reads them, and then
    what is pending; each chunk once, and in the format that it was sent in. No turn may be found a second time, so the
    detector comes only behind the turns, and behind a chunk in which one ended."""
    config, side = state.config, state.input
    cues: list[_Cue] = []
    heard_ms = 0
    for item_id, turn in side.unread.items():
        for chunk in turn.chunks:
            if chunk.start_ms >= heard_ms:
                cues.append(((chunk.format, None), _feed(state, chunk)))
                heard_ms = chunk.end_ms
        setting = cues[-1][0] if cues else (config.input_format, None)
        cues.append((setting, fx.CommitTurn(state.session_id, item_id, turn.start_ms, turn.end_ms)))
    for chunk in side.pending:
        if chunk.start_ms >= heard_ms:
            detection = config.turn_detection if chunk.start_ms >= side.closed_ms else None
            cues.append(((chunk.format, detection), _feed(state, chunk)))
    return cues


def _cues_of_before(state: SessionState) -> list[_Cue]:
    """The same for logs that were written before such turns were read again: what is pending, and no more."""
    usual = (state.config.input_format, state.config.turn_detection)
    return [(usual, _feed(state, chunk)) for chunk in state.input.pending]


def _listened(state: SessionState, cues: Sequence[_Cue]) -> Iterator[fx.Effect]:
    """The ear is opened, set before each cue as that wants it, and in the end as the session does."""
    config = state.config
    usual = (config.input_format, config.turn_detection)
    feeds = (cue for _, cue in cues if isinstance(cue, fx.FeedAudio))
    start_ms = next((feed.start_ms for feed in feeds), state.input.now_ms)
    sound, detection = present = cues[0][0] if cues else usual
    yield fx.OpenSession(state.session_id, sound, detection, start_ms, config.tools, config.tool_choice)
    for setting, cue in cues:
        if setting != present:
            yield _configured(state, setting)
        present = setting
        yield cue
    if present != usual:
        yield _configured(state, usual)


def _configured(state: SessionState, setting: _Setting) -> fx.ConfigureSession:
    return fx.ConfigureSession(state.session_id, *setting, state.config.tools, state.config.tool_choice)


def _feed(state: SessionState, chunk: Chunk) -> fx.FeedAudio:
    return fx.FeedAudio(state.session_id, state.epoch, chunk.digest, chunk.start_ms, chunk.audio_ms)


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
