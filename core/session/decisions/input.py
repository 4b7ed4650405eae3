"""The user's side: appends, clears, commits, and what the detector heard."""

from __future__ import annotations

import attrs

from core.session import commands as c
from core.session import events as e
from core.session.config import AUDIO, IMAGE, REFERENCE_AUDIO, TEXT
from core.session.decisions.context import Context, Decision
from core.session.decisions.cut import cut
from core.session.ledger import speaking
from core.session.overlap import judge_finished, judge_ongoing, may_barge_in, why_not
from core.session.refusals import refuse
from core.session.state import (
    IMAGES_PENDING_MAX,
    PENDING_CHUNKS_MAX,
    REFERENCE_BYTES_MAX,
    SessionState,
    Speech,
    next_item_id,
)

_PARTS = {TEXT: "text", REFERENCE_AUDIO: "ref_audio"}
"""Kind -> the field that a refusal names."""


def append_audio(ctx: Context, command: c.AppendAudio) -> Decision:
    """A chunk of audio, images, or both at once: all of it or nothing."""
    state, side = ctx.state, ctx.state.input
    sounds, images = bool(command.digest), command.images
    missing = AUDIO if sounds and AUDIO not in state.inputs else IMAGE if images and IMAGE not in state.inputs else None
    if missing is not None:
        return refuse("input_unsupported", command.event_id, "audio" if missing == AUDIO else "video_frames")
    size_bytes = command.size_bytes + sum(image.size_bytes for image in images)
    if side.pending_bytes + size_bytes > state.config.max_pending_input_bytes:
        return refuse("input_too_large", command.event_id, "audio" if sounds else "video_frames")
    if len(side.pending) >= PENDING_CHUNKS_MAX or len(side.images) + len(images) > IMAGES_PENDING_MAX:
        return refuse("input_too_large", command.event_id, "audio" if sounds else "video_frames")
    shown = [image_append(side.now_ms, image) for image in images]
    if sounds:
        return (*shown, _audio(state, command))
    return (*shown[:-1], attrs.evolve(shown[-1], event_id=command.event_id)) if shown else ()


def image_append(now_ms: int, image: c.ImageBody, item_id: str = "") -> e.Append:
    """``item_id``: of the client's item that it is in; empty: the turn that is being said."""
    return e.Append(
        IMAGE,
        image.digest,
        image.size_bytes,
        now_ms,
        0,
        encoding="",
        rate=0,
        media_type=image.media_type,
        item_id=item_id,
    )


def _audio(state: SessionState, command: c.AppendAudio) -> e.Append:
    fmt, side = state.config.input_format, state.input
    since_base = side.samples + command.samples - side.base_samples
    end_ms = side.base_ms + since_base * 1000 // fmt.rate
    return e.Append(
        AUDIO,
        command.digest,
        command.size_bytes,
        side.now_ms,
        end_ms - side.now_ms,
        command.samples,
        fmt.encoding,
        fmt.rate,
        command.event_id,
        _may_be_speech(command, state.config.overlap_silence_rms),
    )


def append_part(ctx: Context, command: c.AppendPart) -> Decision:
    """A text of the turn that is being said, or the voice to speak with."""
    state, side = ctx.state, ctx.state.input
    param = _PARTS[command.kind]
    if command.kind not in state.inputs:
        return refuse("input_unsupported", command.event_id, param)
    if command.kind == REFERENCE_AUDIO:
        size_bytes = command.size_bytes
        too_big = size_bytes > REFERENCE_BYTES_MAX
    else:
        size_bytes = len(command.text.encode())
        too_big = side.pending_bytes + size_bytes > state.config.max_pending_input_bytes
    if too_big:
        return refuse("input_too_large", command.event_id, param)
    return (
        e.Append(
            command.kind,
            command.digest,
            size_bytes,
            side.now_ms,
            0,
            encoding="",
            rate=0,
            event_id=command.event_id,
            text=command.text,
            media_type=command.media_type,
        ),
    )


def _may_be_speech(command: c.AppendAudio, silence_rms: float) -> bool | None:
    """The client's word, else the loudness; None: nobody knows."""
    if command.is_speech is not None or command.rms is None:
        return command.is_speech
    return command.rms >= silence_rms


def clear_input(ctx: Context, command: c.ClearInput) -> Decision:
    return (e.InputCleared(command.event_id),)


def commit_input(ctx: Context, command: c.CommitInput) -> Decision:
    """The client closes the turn; it takes everything that is pending. One in which nothing was said, typed or (without
    any sound) shown is not answered."""
    state, side = ctx.state, ctx.state.input
    sounds, typed, shown = side.now_ms > side.taken_ms, bool(side.typed.strip()), bool(side.images)
    if not (sounds or typed or shown):
        return refuse("input_empty", command.event_id)
    speech = side.heard_speech
    respond = bool(command.create_response) and (speech or typed or (shown and not sounds))
    if respond and len(state.queued) >= state.config.max_pending_commits:
        return refuse("too_many_pending_commits", command.event_id)
    item_id = next_item_id(state)
    return (e.Commit(item_id, "client", side.taken_ms, side.now_ms, speech, respond, None, command.event_id),)


def speech_heard(ctx: Context, command: c.SpeechHeard) -> Decision:
    """Speech began. Over an answer that may be cut it is an overlap, and takes the turn only when judged so."""
    state, detection = ctx.state, ctx.state.config.turn_detection
    open_speech = state.input.speech
    if detection is None or (open_speech is not None and open_speech.segment == command.segment):
        return ()
    # A segment whose end never came (the ear was cleared meanwhile) must not leave the session deaf.
    stopped = (_stopped(state, open_speech),) if open_speech is not None else ()
    start_ms = max(command.start_ms - detection.prefix_padding_ms, state.input.taken_ms)
    item_id = next_item_id(state)
    over_answer = speaking(state, ctx.cursor, ctx.now_ns) is not None
    if not over_answer or may_barge_in(state.config):
        return (*stopped, e.SpeechStarted(command.segment, start_ms, item_id, over_answer))
    return (
        *stopped,
        e.SpeechStarted(command.segment, start_ms, item_id, False),
        e.OverlapDecided("listen", why_not(state.config), command.segment, 0, item_id),
    )


def _stopped(state: SessionState, speech: Speech) -> e.SpeechStopped:
    return e.SpeechStopped(speech.segment, state.input.now_ms, speech.item_id)


def speech_continues(ctx: Context, command: c.SpeechContinues) -> Decision:
    speech = ctx.state.input.speech
    if speech is None or speech.segment != command.segment or speech.judged:
        return ()
    if speaking(ctx.state, ctx.cursor, ctx.now_ns) is None:
        return (_decided(speech, "barge_in", "answer_over", command.speech_ms),)
    verdict = judge_ongoing(ctx.state.config, command.speech_ms)
    if verdict is None:
        return ()
    return (_decided(speech, *verdict, command.speech_ms), *cut(ctx, "turn_detected"))


def judge_overlap(ctx: Context, command: c.JudgeOverlap) -> Decision:
    """The client decides: a cut; or the answer goes on, and what is being said is a turn that waits, or nothing."""
    state = ctx.state
    speech = state.input.speech
    open_one = speech if speech is not None and not speech.judged else None
    spoken_over = speaking(state, ctx.cursor, ctx.now_ns) or state.active
    if spoken_over is None or (open_one is None and command.action != "barge_in"):
        return ()
    if open_one is None:
        return (e.OverlapDecided(command.action, command.reason), *cut(ctx, "barge_in"))
    decided = _decided(open_one, command.action, command.reason, state.input.now_ms - open_one.start_ms)
    match command.action:
        case "barge_in":
            return (decided, *cut(ctx, "barge_in"))
        case "drop":
            return (decided, _stopped(state, open_one))
    return (decided,)


def speech_finished(ctx: Context, command: c.SpeechFinished) -> Decision:
    """The segment is over: a turn of the user's, or a remark that is not one."""
    state, speech = ctx.state, ctx.state.input.speech
    if speech is None or speech.segment != command.segment:
        return ()
    made: list[e.Event] = []
    taken = True
    if not speech.judged:
        action, reason = judge_finished(state.config, command.end_ms - command.start_ms, command.text)
        over_answer = speaking(state, ctx.cursor, ctx.now_ns) is not None
        if action == "barge_in" and not over_answer:
            reason = "answer_over"
        made.append(_decided(speech, action, reason, command.end_ms - command.start_ms))
        taken = action == "barge_in"
        if taken and over_answer:
            made.extend(cut(ctx, "turn_detected"))
    made.append(e.SpeechStopped(command.segment, command.end_ms, speech.item_id, command.text, command.timings))
    if taken:
        made.extend(_close_turn(state, speech, command))
    return tuple(made)


def _close_turn(state: SessionState, speech: Speech, command: c.SpeechFinished) -> list[e.Event]:
    detection = state.config.turn_detection
    said_nothing = command.text is not None and not command.text.strip()
    respond = detection is not None and detection.create_response and not said_nothing
    if respond and len(state.queued) >= state.config.max_pending_commits:
        respond = False
    # What came in since, while the words were being read, is the next turn's.
    end_ms = max(speech.start_ms, command.end_ms)
    made: list[e.Event] = [
        e.Commit(speech.item_id, "detector", speech.start_ms, end_ms, not said_nothing, respond, command.segment)
    ]
    if command.text is not None:
        made.append(e.InputTranscript(speech.item_id, command.text))
    return made


def turn_heard(ctx: Context, command: c.TurnHeard) -> Decision:
    item = ctx.state.items.get(command.item_id)
    if item is None or item.transcribed:
        return ()
    return (e.InputTranscript(command.item_id, command.text),)


def _decided(speech: Speech, action: str, reason: str, speech_ms: int) -> e.OverlapDecided:
    return e.OverlapDecided(action, reason, speech.segment, speech_ms, speech.item_id)
