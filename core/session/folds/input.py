"""The user's side: what comes in, and the turns that it becomes."""

from __future__ import annotations

from core.session import events as e
from core.session.config import AUDIO, AudioFormat
from core.session.conversation import add_item, item_changed
from core.session.folds.moves import client_was_here
from core.session.parts import forget_shown_before, show, take_in, take_pending
from core.session.state import (
    PREROLL_MS,
    UNREAD_BYTES_MAX,
    UNREAD_TURNS_MAX,
    Chunk,
    Input,
    Item,
    SessionState,
    Speech,
    UnreadTurn,
)


def append(state: SessionState, event: e.Append, at_ns: int) -> None:
    side = state.input
    if event.kind != AUDIO:
        take_in(state, event)
        client_was_here(state, event.event_id, at_ns)
        return
    side.samples += event.samples
    side.now_ms = event.start_ms + event.audio_ms
    usual = state.config.input_format
    same = event.rate == usual.rate and event.encoding == usual.encoding
    sound = usual if same else AudioFormat(event.encoding, event.rate)
    side.pending.append(Chunk(event.digest, event.size_bytes, event.start_ms, event.audio_ms, sound))
    side.pending_bytes += event.size_bytes
    if event.is_speech is not False:
        side.heard_speech = True
    if state.config.turn_detection is not None and side.speech is None:
        _take_input(state, side.now_ms - PREROLL_MS)
        forget_shown_before(side, side.now_ms - PREROLL_MS)
    client_was_here(state, event.event_id, at_ns)


def input_cleared(state: SessionState, event: e.InputCleared, at_ns: int) -> None:
    _take_input(state, state.input.now_ms)
    take_pending(state.input)
    state.input.speech = None
    state.input.heard_speech = False
    client_was_here(state, event.event_id, at_ns)


def speech_started(state: SessionState, event: e.SpeechStarted, at_ns: int) -> None:
    state.input.speech = Speech(event.segment, event.start_ms, event.item_id, event.overlap, judged=not event.overlap)
    state.items_made += 1
    state.activity_ns = at_ns


def speech_stopped(state: SessionState, event: e.SpeechStopped, at_ns: int) -> None:
    state.input.speech = None
    state.activity_ns = at_ns


def overlap_decided(state: SessionState, event: e.OverlapDecided, at_ns: int) -> None:
    speech = state.input.speech
    if speech is not None and speech.segment == event.segment:
        speech.judged = True


def commit(state: SessionState, event: e.Commit, at_ns: int) -> None:
    taken = _take_input(state, event.end_ms)
    state.input.closed_ms = state.input.taken_ms
    typed, images = take_pending(state.input)
    state.input.heard_speech = False
    if event.by == "client":
        state.items_made += 1
        state.input.speech = None
    add_item(
        state,
        Item(
            event.item_id,
            "user",
            "message",
            None if event.speech else "",
            spoken=True,
            audio_ms=event.end_ms - event.start_ms,
            typed=typed,
        ),
    )
    if event.speech:
        _keep_unread(state.input, event, taken)
    if images:
        show(state, event.item_id, images)
    if event.create_response:
        state.queued.append(event.item_id)
    client_was_here(state, event.event_id, at_ns)


def input_transcript(state: SessionState, event: e.InputTranscript, at_ns: int) -> None:
    item = state.items.get(event.item_id)
    if item is not None:
        item.text = event.text
        item.transcribed = True
        item_changed(state, item)


def _keep_unread(side: Input, event: e.Commit, taken: list[Chunk]) -> None:
    """Until its transcript comes, the turn is what a new worker must hear. Of too many, the oldest are read by nobody."""
    shared = [side.pending[0]] if side.pending and side.pending[0].start_ms < side.closed_ms else []
    chunks = tuple([chunk for chunk in (*taken, *shared) if chunk.start_ms + chunk.audio_ms > event.start_ms])
    side.unread[event.item_id] = UnreadTurn(event.start_ms, event.end_ms, chunks)
    while len(side.unread) > UNREAD_TURNS_MAX or (
        len(side.unread) > 1 and sum([turn.size_bytes for turn in side.unread.values()]) > UNREAD_BYTES_MAX
    ):
        del side.unread[next(iter(side.unread))]


def _take_input(state: SessionState, upto_ms: int) -> list[Chunk]:
    """The input up to ``upto_ms`` is no longer pending; a chunk leaves once all of it is taken. Those that left."""
    side = state.input
    side.taken_ms = max(side.taken_ms, min(upto_ms, side.now_ms))
    if side.taken_ms == side.now_ms:
        taken = list(side.pending)
        side.pending.clear()
    else:
        taken = []
        while side.pending and side.pending[0].end_ms <= side.taken_ms:
            taken.append(side.pending.popleft())
    side.pending_bytes -= sum([chunk.size_bytes for chunk in taken])
    return taken
