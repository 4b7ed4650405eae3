"""The machine: a command, the time and the delivery cursor become events, a new state, and effects.

Theory. A session is two small machines that run side by side and a ledger between them. The user's side goes
silent -> speaking -> committed; the assistant's side goes idle -> answering -> idle; the ledger knows of every answer how
much was made, handed over, heard. Each step is

    decide      one function for the command's type, pure, which returns events or a refusal;
    apply       each event is folded into the state, as it will be folded again by every replay;
    settle      state-triggered rules (like h11's), tried until none applies: a lane is missing -> open it from the heard
                history; a turn waits and nobody answers -> answer it; what a lane is to be told is longer than the
                context window -> slide that first; a lane was told more than was heard -> truncate it;
    effects     what each record makes the world do, from the state after it.

Three numbers only grow. The epoch is bumped by everything that ends an answer before its time, and model output of an
older epoch decides nothing. The generation is bumped at each attachment, and a detach of an older one decides nothing. The
term is the store's: this machine only records it.

What was rejected: futures and flags for the response in flight (every race of the reports lives there); a frozen state
(a fold ten times slower); letting decide build on its own events by hand (settle does that on the real state).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from core.session import commands as c
from core.session import events as e
from core.session.apply import apply
from core.session.decisions import input as user
from core.session.decisions import items, link, output
from core.session.decisions.context import Context, Decision
from core.session.decisions.cut import LANE_FULL, closing, settle_heard
from core.session.effects import Effect
from core.session.ledger import heard_chars
from core.session.legality import LEGAL, PHASE_CODES
from core.session.react import effects_of
from core.session.refusals import Refusal, refuse
from core.session.sanity import absurd, echoed_id
from core.session.state import Phase, SessionState
from core.session.window import does_not_fit, lane_of, slide

SETTLE_ROUNDS_MAX = 8
"""More rounds than this would mean that two rules feed each other: a fault of ours."""


@attrs.frozen
class Step:
    """What a command led to. ``refusal`` is also among the records, as ``refused``."""

    records: tuple[e.Record, ...]
    effects: tuple[Effect, ...]
    refusal: Refusal | None = None


Observe = Callable[[e.Record, SessionState], None]


def step(
    state: SessionState, command: c.Command, now_ns: int, cursor: c.Cursor, observe: Observe | None = None
) -> Step:
    """Decide ``command`` and fold what it becomes into ``state``, in place.

    ``observe`` is called after each record with the state as that record left it (a projection folds along). ``now_ns``
    is the wall clock; a clock that steps back is held at the log's last time. Never raises for anything that a client, a
    runtime or a socket can do.
    """
    now_ns = max(now_ns, state.at_ns)
    decision = decide(state, command, now_ns, cursor)
    refusal = decision if isinstance(decision, Refusal) else None
    events = (_refused(refusal, command),) if refusal is not None else decision
    assert not isinstance(events, Refusal)
    records: list[e.Record] = []
    effects: list[Effect] = []
    for _ in range(SETTLE_ROUNDS_MAX):
        for event in events:
            record = stamp(state, event, now_ns)
            apply(state, record)
            records.append(record)
            if observe is not None:
                observe(record, state)
            effects.extend(effects_of(record, state))
        if not records:
            break
        events = settle(Context(state, now_ns, cursor))
        if not events:
            break
    else:
        raise AssertionError(f"the session does not settle: {events}")
    return Step(tuple(records), tuple(effects), refusal)


def decide(state: SessionState, command: c.Command, now_ns: int, cursor: c.Cursor) -> Decision:
    """What ``command`` becomes in ``state``: events, none, or a refusal. Changes nothing."""
    kind = type(command)
    event_id = echoed_id(command)
    if event_id is not None and event_id in state.event_ids:
        return ()  # sent again after a resume: its consequence is in the log already
    if state.phase not in LEGAL[kind]:
        return refuse(PHASE_CODES[state.phase], event_id) if kind in c.CLIENT_COMMANDS else ()
    if kind in _OF_THE_LANE and not state.runtime_up:
        return ()  # a worker that this owner has not greeted yet still talks of what it was told before
    bad = absurd(state, command)
    if bad is not None:
        return _without_sense(Context(state, now_ns, cursor), command, bad)
    return _DECIDE[kind](Context(state, now_ns, cursor), command)


def _without_sense(ctx: Context, command: c.Command, field: str) -> Decision:
    """A client is told; an answer that the model spoils so fails; anything else was not said."""
    if isinstance(command, c.UpdateConfig) and field == "config":
        return refuse("invalid_config", echoed_id(command), items.invalid_param(command.config) or "session")
    if type(command) in c.CLIENT_COMMANDS:
        return refuse("invalid_value", echoed_id(command), field)
    active = ctx.state.active
    if not isinstance(command, c.ModelOutput | c.ModelCall | c.ModelDone) or active is None:
        return ()
    spoilt = command.epoch == ctx.state.epoch and command.response_id == active.response_id
    return output.fail_output(ctx, c.FailOutput("model_error")) if spoilt else ()


def settle(ctx: Context) -> tuple[e.Event, ...]:
    """The state-triggered rules: the events of the first that applies, none at the fixed point."""
    state = ctx.state
    if state.phase is not Phase.OPEN or not state.runtime_up:
        return ()
    if state.lane_epoch != state.epoch:
        return settle_heard(ctx) or _open_lane(ctx)
    if state.active is not None:
        return ()
    if state.queued:
        return settle_heard(ctx) or output.start_queued(ctx)
    return _lane_told_too_much(state)


def _open_lane(ctx: Context) -> tuple[e.Event, ...]:
    state = ctx.state
    lane = lane_of(state)
    if does_not_fit(state, lane):
        return closing(ctx, LANE_FULL)
    reason = "opened" if state.epoch == 1 else "reopened"
    return slide(state, lane) or (e.LaneOpened(lane.parts, reason, lane.tokens),)


def _lane_told_too_much(state: SessionState) -> tuple[e.Event, ...]:
    """A truncate that came after the lane was told: heard-only must hold before the lane's next unit."""
    made: list[e.Event] = []
    for item_id in state.told_too_much:
        response = state.response_of_item(item_id)
        if response is not None:
            made.append(e.LaneTruncated(item_id, heard_chars(response)))
    return tuple(made)


def stamp(state: SessionState, event: e.Event, now_ns: int) -> e.Record:
    """``event`` at the log's next place. An epoch_bump stands in the epoch that it begins."""
    epoch = event.epoch if isinstance(event, e.EpochBump) else state.epoch
    return e.Record(state.position + 1, epoch, now_ns, event)


def _refused(refusal: Refusal, command: c.Command) -> e.Refused:
    return e.Refused(refusal.code, refusal.message, refusal.param, refusal.event_id, c.NAMES[type(command)])


_OF_THE_LANE = (
    c.SpeechHeard,
    c.SpeechContinues,
    c.SpeechFinished,
    c.ModelSpeaks,
    c.ModelOutput,
    c.ModelCall,
    c.ModelDone,
)

_DECIDE: dict[type, Callable[[Context, Any], Decision]] = {
    c.AppendAudio: user.append_audio,
    c.AppendPart: user.append_part,
    c.ClearInput: user.clear_input,
    c.CommitInput: user.commit_input,
    c.SpeechHeard: user.speech_heard,
    c.SpeechContinues: user.speech_continues,
    c.SpeechFinished: user.speech_finished,
    c.TurnHeard: user.turn_heard,
    c.CreateResponse: output.create_response,
    c.CancelOutput: output.cancel_output,
    c.JudgeOverlap: user.judge_overlap,
    c.FailOutput: output.fail_output,
    c.AckPlayback: output.ack_playback,
    c.ModelSpeaks: output.model_speaks,
    c.ModelOutput: output.model_output,
    c.ModelCall: output.model_call,
    c.ModelDone: output.model_done,
    c.CreateItem: items.create_item,
    c.DeleteItem: items.delete_item,
    c.RetrieveItem: items.retrieve_item,
    c.UpdateConfig: items.update_config,
    c.Pause: link.pause,
    c.Unpause: link.unpause,
    c.Touch: link.touch,
    c.Close: link.close,
    c.LoseRuntime: link.lose_runtime,
    c.GainRuntime: link.gain_runtime,
    c.Attach: link.attach,
    c.ConfirmToken: link.confirm_token,
    c.Detach: link.detach,
    c.FireDeadline: link.fire_deadline,
}
"""One function for each command type; a test holds it total over ``commands.Command``."""
