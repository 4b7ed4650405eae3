"""The one path of every cut, and the drain that a lost runtime or server is.

A cut: undelivered audio above the cursor is never sent, the answer ends as cancelled, and (a consequence, see
``machine.py``) a new lane starts from what was heard. A function call of it stands if its last frame was handed over by then,
and else was never made. A drain: what is durable is still delivered, then the answer ends
as incomplete.
"""

from __future__ import annotations

from core.session import events as e
from core.session.decisions.context import Context
from core.session.ledger import assumed_heard_ms, outstanding, sent_ms, undelivered_calls, unsettled
from core.session.state import Response

LANE_FULL = "lane_full"
"""Why a session ends whose conversation the model cannot hold."""


def closing(ctx: Context, reason: str) -> tuple[e.Event, ...]:
    """The end of a session, with the one end of its answer before it."""
    ended = cut(ctx, "session_closed") if ctx.state.active is not None else ()
    return (*ended, e.SessionClosed(reason))


def cut(ctx: Context, reason: str, event_id: str | None = None) -> tuple[e.Event, ...]:
    """Cut whatever is being made or not played out. Bumps the epoch also when there is nothing of that kind."""
    state = ctx.state
    hit = [
        r
        for r in unsettled(state)
        if outstanding(r, ctx.cursor, ctx.now_ns) or r is state.active or undelivered_calls(r, ctx.cursor)
    ]
    made: list[e.Event] = []
    for response in hit:
        made.extend(assume_heard(ctx, response))
    newest = hit[-1] if hit else None
    made.append(
        e.EpochBump(
            state.epoch + 1,
            reason,
            "cut",
            ctx.cursor.number,
            newest.response_id if newest else None,
            sent_ms(newest, ctx.cursor) if newest else 0,
            event_id,
        )
    )
    for response in hit:
        dead_ms = response.produced_ms - response.invalidated_ms - sent_ms(response, ctx.cursor)
        calls = undelivered_calls(response, ctx.cursor)
        if dead_ms > 0 or calls or response is not newest:
            made.append(e.OutputInvalidated(response.response_id, dead_ms, calls))
    if state.active is not None:
        made.append(e.ResponseEnded(state.active.response_id, "cancelled", reason))
    return tuple(made)


def drain(ctx: Context, reason: str) -> tuple[e.Event, ...]:
    """The lane is lost: a new epoch, and the answer ends after what is durable of it."""
    state = ctx.state
    active = state.active
    handed_ms = sent_ms(active, ctx.cursor) if active else 0
    made: list[e.Event] = [
        e.EpochBump(
            state.epoch + 1,
            reason,
            "drain",
            ctx.cursor.number,
            active.response_id if active else None,
            handed_ms,
        )
    ]
    if active is not None:
        made.append(e.ResponseEnded(active.response_id, "incomplete", reason))
    return tuple(made)


def assume_heard(ctx: Context, response: Response) -> tuple[e.PlaybackAck, ...]:
    """For a client that has never acked this answer: what it is taken to have heard by now, recorded in the log."""
    if response.acked or response.cut:  # a truncate is an ack, too
        return ()
    if response.committed_ms >= response.produced_ms - response.invalidated_ms:
        return ()  # nothing was made, or all of it was heard
    heard_ms = assumed_heard_ms(ctx.state, response, ctx.cursor, ctx.now_ns)
    handed_ms = sent_ms(response, ctx.cursor)
    if heard_ms <= response.committed_ms:
        return ()
    return (e.PlaybackAck(response.response_id, heard_ms, heard_ms, handed_ms, source="assumed"),)


def settle_heard(ctx: Context) -> tuple[e.PlaybackAck, ...]:
    """The same for every answer of the conversation, before a lane is told what was heard."""
    made: list[e.PlaybackAck] = []
    for response in unsettled(ctx.state):
        if response is not ctx.state.active and not response.out_of_band:
            made.extend(assume_heard(ctx, response))
    return tuple(made)
