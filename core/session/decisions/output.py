"""The assistant's side: answers begin, are made, cut, heard, and end."""

from __future__ import annotations

from collections.abc import Iterator

from core.session import commands as c
from core.session import events as e
from core.session.decisions.context import Context, Decision
from core.session.decisions.cut import LANE_FULL, closing, cut, settle_heard
from core.session.ledger import PLAYED_OUT_MS, played_now_ms, sent_ms, speaking
from core.session.refusals import refuse
from core.session.state import (
    ANSWER_CHARS_MAX,
    ANSWER_MARKS_MAX,
    CALL_BYTES_MAX,
    CALLS_MAX,
    Response,
    SessionState,
    next_item_id,
    next_response_id,
)
from core.session.window import does_not_fit, lane_of, slide


def create_response(ctx: Context, command: c.CreateResponse) -> Decision:
    state = ctx.state
    if state.active is not None:
        return refuse("response_active", command.event_id)
    if state.lane_epoch != state.epoch:
        return refuse("runtime_unavailable", command.event_id)
    return _begin(ctx, "create", command)


def model_speaks(ctx: Context, command: c.ModelSpeaks) -> Decision:
    """An answer that the model begins by itself; nothing while there is another. (Turns that wait in an open lane are
    answered before any command comes: ``machine.settle``.)"""
    state = ctx.state
    if command.epoch != state.epoch or state.lane_epoch != state.epoch or state.active is not None:
        return ()
    return _begin(ctx, "model", c.CreateResponse())


def _begin(ctx: Context, trigger: str, command: c.CreateResponse) -> tuple[e.Event, ...]:
    """An answer to all that was said so far, once the window has room for it."""
    state = ctx.state
    heard = settle_heard(ctx)
    lane = lane_of(state, None, command.instructions, {ack.response_id: ack.committed_ms for ack in heard})
    if does_not_fit(state, lane):
        return closing(ctx, LANE_FULL)
    slid = slide(state, lane)
    started = e.ResponseStarted(
        next_response_id(state),
        next_item_id(state),
        trigger,
        None,
        command.metadata,
        command.instructions,
        command.modalities or state.config.output_modalities,
        command.max_output_tokens or state.config.max_output_tokens,
        command.out_of_band,
        command.event_id,
        slid[0].tokens_after if slid else lane.tokens,
        command.tools,
        command.tool_choice,
    )
    return (*heard, *slid, started)


def start_queued(ctx: Context) -> tuple[e.Event, ...]:
    """The answer to the first turn that waits for one, once the window has room for it."""
    state = ctx.state
    lane = lane_of(state, state.queued[0])
    if does_not_fit(state, lane):
        return closing(ctx, LANE_FULL)
    return slide(state, lane) or (
        e.ResponseStarted(
            next_response_id(state),
            next_item_id(state),
            "commit",
            state.queued[0],
            modalities=state.config.output_modalities,
            max_output_tokens=state.config.max_output_tokens,
            prompt_tokens=lane.tokens,
        ),
    )


def cancel_output(ctx: Context, command: c.CancelOutput) -> Decision:
    """The client cuts. A cancel that names an answer which is over is like one with nothing to cut."""
    state = ctx.state
    named = command.response_id
    target = speaking(state, ctx.cursor, ctx.now_ns)
    if state.active is not None and (target is None or named == state.active.response_id):
        target = state.active  # one that is out of band is never heard, yet can be cancelled
    if target is not None and command.unsent_only and not target.active:
        unsent_ms = target.produced_ms - target.invalidated_ms - sent_ms(target, ctx.cursor)
        target = target if unsent_ms > 0 else None
    cleared = (e.InputCleared(command.event_id),) if command.clear_input else ()
    if target is None or (named is not None and named != target.response_id):
        if command.always and named is None:
            return (*cleared, *cut(ctx, command.reason, command.event_id))
        if cleared:
            return cleared
        if command.quiet:
            return ()
        return refuse("response_not_active", command.event_id, "response_id" if named else None)
    return (*cleared, *cut(ctx, command.reason, command.event_id))


def fail_output(ctx: Context, command: c.FailOutput) -> Decision:
    """The client does not take what was released for it: this answer fails, the session lives."""
    if ctx.state.active is None and speaking(ctx.state, ctx.cursor, ctx.now_ns) is None:
        return ()
    made = list(cut(ctx, command.reason))
    for index, event in enumerate(made):
        if isinstance(event, e.ResponseEnded):
            made[index] = e.ResponseEnded(event.response_id, "failed", command.reason)
    return tuple(made)


def ack_playback(ctx: Context, command: c.AckPlayback) -> Decision:
    """What was heard, in any order and as late as it likes; clamped to what was sent, never an error for being off."""
    state = ctx.state
    response = _acked_response(state, command)
    if response is None:
        if command.truncate and command.item_id in state.items:
            return refuse("item_not_audio", command.event_id, "item_id")
        code = "item_unknown" if command.item_id is not None else "response_unknown"
        return refuse(code, command.event_id, "item_id" if command.item_id is not None else "response_id")
    handed_ms = sent_ms(response, ctx.cursor)
    played_ms = _clamp(command.played_ms, handed_ms)
    if command.truncate:
        kept_ms = played_ms if response.limit_ms is None else min(played_ms, response.limit_ms)
        return (_ack(response, max(response.played_ms, kept_ms), kept_ms, handed_ms, command),)
    wanted_ms = command.played_ms if command.committed_ms is None else command.committed_ms
    base_ms = response.committed_ms if response.acked else 0  # what was only assumed does not bind it
    committed_ms = max(base_ms, _clamp(wanted_ms, handed_ms))
    if response.limit_ms is not None:
        committed_ms = min(committed_ms, response.limit_ms)
    played_ms = max(played_ms, response.played_ms if response.acked else 0, committed_ms)
    return (_ack(response, played_ms, committed_ms, handed_ms, command),)


def _acked_response(state: SessionState, command: c.AckPlayback) -> Response | None:
    if command.response_id is not None:
        return state.responses.get(command.response_id)
    if command.item_id is not None:
        return state.response_of_item(command.item_id)
    return state.last_response


def _clamp(ms: int, sent: int) -> int:
    return max(0, min(ms, sent))


def _ack(
    response: Response, played_ms: int, committed_ms: int, handed_ms: int, command: c.AckPlayback
) -> e.PlaybackAck:
    return e.PlaybackAck(
        response.response_id, played_ms, committed_ms, handed_ms, command.truncate, "client", command.event_id
    )


def model_output(ctx: Context, command: c.ModelOutput) -> Decision:
    """One unit. What comes from a lane that is over never becomes an event (the first fence)."""
    state, active = ctx.state, ctx.state.active
    if active is None or command.epoch != state.epoch or command.response_id != active.response_id:
        return ()
    chars, marks = len(active.text) + len(command.text), len(active.marks) + len(command.marks)
    if chars > ANSWER_CHARS_MAX or marks > ANSWER_MARKS_MAX:
        return fail_output(ctx, c.FailOutput("answer_too_long"))
    if command.kind == "listen" and active.text:
        return _listens(ctx, active)
    end_ms = active.produced_ms
    if command.samples > 0 and command.rate > 0:  # a rate that changes in mid-answer must not turn time back
        end_ms = max(end_ms, (active.produced_samples + command.samples) * 1000 // command.rate)
    return (
        e.Output(
            command.response_id,
            active.units,
            command.kind,
            command.text,
            command.digest,
            command.size_bytes,
            command.rate,
            command.samples,
            active.produced_ms,
            end_ms - active.produced_ms,
            tuple(_ordered(active, command.marks, end_ms)),
            command.timings,
        ),
    )


def _listens(ctx: Context, active: Response) -> tuple[e.Event, ...]:
    """The model goes over to listening in the middle of its answer: it gives way, if anybody still hears it."""
    unheard_ms = active.produced_ms - played_now_ms(active, ctx.cursor, ctx.now_ns)
    if unheard_ms <= PLAYED_OUT_MS:
        return (e.ResponseEnded(active.response_id, "completed"),)
    speech = ctx.state.input.speech
    segment, item_id = (speech.segment, speech.item_id) if speech is not None else (0, "")
    return (e.OverlapDecided("barge_in", "model_listen", segment, 0, item_id), *cut(ctx, "turn_detected"))


def _ordered(response: Response, marks: tuple[e.TextMark, ...], end_ms: int) -> Iterator[e.TextMark]:
    """Marks never go back, nor beyond the audio that there is, whatever the model says."""
    chars, mark_ms = response.marks[-1] if response.marks else (0, 0)
    for mark in marks:
        chars, mark_ms = max(chars, mark.chars), max(mark_ms, min(mark.audio_end_ms, end_ms))
        yield e.TextMark(chars, mark_ms)


def model_call(ctx: Context, command: c.ModelCall) -> Decision:
    """A function call, fenced like a unit. One that no client could take fails its answer."""
    state, active = ctx.state, ctx.state.active
    if active is None or command.epoch != state.epoch or command.response_id != active.response_id:
        return ()
    size_bytes = len(command.name.encode()) + len(command.arguments.encode())
    if not command.name or size_bytes > CALL_BYTES_MAX or len(active.calls) >= CALLS_MAX:
        return fail_output(ctx, c.FailOutput("invalid_function_call"))
    item_id = next_item_id(state)
    known = any(item.call_id == command.call_id for item in state.items.values())
    call_id = f"call_{item_id}" if known or not command.call_id else command.call_id
    return (e.ToolCalled(command.response_id, item_id, call_id, command.name, command.arguments),)


def model_done(ctx: Context, command: c.ModelDone) -> Decision:
    state, active = ctx.state, ctx.state.active
    if active is None or command.epoch != state.epoch or command.response_id != active.response_id:
        return ()
    ended = e.ResponseEnded(command.response_id, command.status, command.reason, command.usage)
    if command.status == "failed" and command.reason == LANE_FULL:
        return (ended, e.SessionClosed(LANE_FULL))
    return (ended,)
