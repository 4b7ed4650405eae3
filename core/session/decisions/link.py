"""Sockets, the runtime's coming and going, pauses, deadlines, the end."""

from __future__ import annotations

from core.session import commands as c
from core.session import events as e
from core.session.deadlines import earliest
from core.session.decisions.context import Context, Decision
from core.session.decisions.cut import closing, drain
from core.session.state import Phase
from core.session.time_units import NS_PER_MS

TOUCH_PART = 4
"""A sign of life is recorded when more than this part (a quarter) of the idle time has passed without any."""


def attach(ctx: Context, command: c.Attach) -> Decision:
    return (
        e.Attached(
            ctx.state.attachment.generation + 1,
            command.token_hash,
            command.resumed_from,
            command.sent,
        ),
    )


def confirm_token(ctx: Context, command: c.ConfirmToken) -> Decision:
    link = ctx.state.attachment
    if link.confirmed or link.generation != command.generation:
        return ()
    return (e.TokenConfirmed(command.generation),)


def detach(ctx: Context, command: c.Detach) -> Decision:
    link = ctx.state.attachment
    if not link.attached or link.generation != command.generation:
        return ()  # an attachment of the past: its successor has the stream
    newest = ctx.state.last_response
    live = ctx.cursor.sent.get(newest.response_id) if newest else None
    return (
        e.Detached(
            command.generation,
            ctx.cursor.number,
            command.reason,
            newest.response_id if newest and live else None,
            live.sent_ms if live else 0,
        ),
    )


def pause(ctx: Context, command: c.Pause) -> Decision:
    return () if ctx.state.phase is Phase.PAUSED else (e.Paused(command.event_id),)


def unpause(ctx: Context, command: c.Unpause) -> Decision:
    return () if ctx.state.phase is Phase.OPEN else (e.Unpaused(command.event_id),)


def touch(ctx: Context, command: c.Touch) -> Decision:
    """Worth an event only after a good part of the idle time, so that heartbeats do not fill the log."""
    state = ctx.state
    quiet_ns = ctx.now_ns - state.activity_ns
    due = quiet_ns * TOUCH_PART > state.config.idle_timeout_ms * NS_PER_MS
    return (e.Touched(),) if due else ()


def close(ctx: Context, command: c.Close) -> Decision:
    return closing(ctx, command.reason)


def lose_runtime(ctx: Context, command: c.LoseRuntime) -> Decision:
    """The worker died: the answer drains, and one of which nothing was made yet is asked for again later."""
    state = ctx.state
    if not state.runtime_up:
        return ()
    return (*_ear_lost(ctx), e.RuntimeChanged(False, command.reason), *drain(ctx, "runtime_lost"))


def gain_runtime(ctx: Context, command: c.GainRuntime) -> Decision:
    lost = drain(ctx, "runtime_lost") if ctx.state.active is not None else ()
    return (*_ear_lost(ctx), *lost, _runtime_up(command))


def _runtime_up(command: c.GainRuntime) -> e.RuntimeChanged:
    return e.RuntimeChanged(True, "", command.lane_tokens_max, command.inputs, command.can_truncate, reads_again=True)


def _ear_lost(ctx: Context) -> tuple[e.Event, ...]:
    """Speech whose ear is gone has ended as far as anybody can tell."""
    speech = ctx.state.input.speech
    return () if speech is None else (e.SpeechStopped(speech.segment, ctx.state.input.now_ms, speech.item_id),)


def fire_deadline(ctx: Context, command: c.FireDeadline) -> Decision:
    due = earliest(ctx.state)
    if due is None or due.at_ns > ctx.now_ns:
        return ()
    return (e.DeadlineFired(due.kind), *closing(ctx, due.kind))
