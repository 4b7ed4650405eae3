"""The context window: how much of the conversation the next lane is told, counted in tokens.

A lane is a prefix (the instructions, and in mode ``context`` what is kept of turns that were dropped) and units. A unit is
what one or more turns of the user's and everything that follows them until the user's next turn are: a question without
its answer is never dropped, nor an answer without its question. When a lane that is about to be told would be longer than
the high mark, the oldest units leave until it is below the low mark: rarely and many at a time, so that the beginning of
the prompt stays the same for long and an engine's prefix cache holds. The last unit always stays. A lane that does not fit
into the model even so ends its session (``lane_full``), nobody else's.

Tokens are estimated (telling.py). What a runtime reports of a prompt beyond that (its own persona, examples, template) is
learned as a part of the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from core.session import events as e
from core.session.config import SessionConfig
from core.session.effects import HistoryTurn
from core.session.history import PREVIOUS_ID, conversation, previous_text
from core.session.state import SessionState
from core.session.telling import TURN_TOKENS, text_tokens, turn_tokens

_NOTHING: Mapping[str, int] = {}


@attrs.frozen
class Lane:
    """What a lane is made of; ``tokens`` = ``prefix_tokens`` + those of the turns that are not the prefix's."""

    turns: tuple[HistoryTurn, ...]
    parts: tuple[tuple[str, int], ...]
    """(item id, characters) in order, as lane_opened records it."""
    prefix_tokens: int
    tokens: int
    heard: Mapping[str, int] = attrs.field(factory=dict)
    """Response id -> ms that are about to be recorded as heard."""


def high_low(state: SessionState) -> tuple[int, int]:
    """The marks in tokens: the configuration's, and at most three quarters of what a lane can hold (the rest is for the
    answer), the low one at most three quarters of the high one then."""
    config, limit = state.config, state.lane_tokens_max
    high, low = config.window_high_tokens, config.window_low_tokens
    if limit and high > limit * 3 // 4:
        high = limit * 3 // 4
        low = min(low, high * 3 // 4)
    return high, low


def lane_of(
    state: SessionState,
    upto: str | None = None,
    instructions: str | None = None,
    heard: Mapping[str, int] = _NOTHING,
) -> Lane:
    """The lane that is told the history up to item ``upto``. ``heard``: response id -> ms that are about to be recorded
    as heard."""
    told = conversation(state, upto, heard)
    prefix = text_tokens(state.config.instructions if instructions is None else instructions)
    prefix += state.window.excess_tokens
    if told.turns and told.turns[0].item_id == PREVIOUS_ID:
        prefix += text_tokens(told.turns[0].text or "")
    return Lane(told.turns, told.parts, prefix, prefix + told.tokens, heard)


def _turn_tokens(state: SessionState, turn: HistoryTurn) -> int:
    return turn_tokens(turn, state.items[turn.item_id])


def slide(state: SessionState, lane: Lane) -> tuple[e.WindowSlid, ...]:
    """What has to leave before ``lane`` may be told; none when it fits."""
    if state.config.window_mode == "off" or (lane.tokens <= high_low(state)[0] and not _too_long(state, lane.tokens)):
        return ()
    starts = _unit_starts(lane.turns)
    if len(starts) < 2:
        return ()
    goal = high_low(state)[1]
    reserve = _reserve(state.config)
    costs = [_turn_tokens(state, turn) if turn.item_id != PREVIOUS_ID else 0 for turn in lane.turns]
    kept = sum(costs)
    fixed = lane.prefix_tokens - sum(text_tokens(turn.text or "") for turn in lane.turns[: starts[0]])
    dropped, place = 0, starts[0]
    while dropped < len(starts) - 1 and (dropped == 0 or fixed + reserve + kept > goal):
        dropped += 1
        kept -= sum(costs[place : starts[dropped]])
        place = starts[dropped]
    last = lane.turns[place - 1].item_id
    after = fixed + kept + _previous_tokens(state, last, lane.heard)
    return (e.WindowSlid(dropped, lane.tokens, after, last),)


def does_not_fit(state: SessionState, lane: Lane) -> bool:
    """Whether the model cannot hold ``lane``, however much of it leaves. Goes by what is surely there: what was learned of
    the runtime's own prompts does not count."""
    if not _too_long(state, lane.tokens):
        return False
    slid = slide(state, lane)
    return not slid or _too_long(state, slid[0].tokens_after)


def _too_long(state: SessionState, tokens: int) -> bool:
    limit = state.lane_tokens_max
    return bool(limit) and tokens - state.window.excess_tokens > limit


def _unit_starts(turns: Sequence[HistoryTurn]) -> list[int]:
    """Where units begin; what comes before the first turn of the user's belongs to the first unit."""
    first = 1 if turns and turns[0].item_id == PREVIOUS_ID else 0
    if first >= len(turns):
        return []
    later = range(first + 1, len(turns))
    return [first, *(place for place in later if turns[place].role == "user" and turns[place - 1].role != "user")]


def _reserve(config: SessionConfig) -> int:
    return config.window_previous_tokens + TURN_TOKENS if config.window_mode == "context" else 0


def _previous_tokens(state: SessionState, upto: str, heard: Mapping[str, int]) -> int:
    """What is kept of the turns that are dropped once ``upto`` is, in tokens."""
    if state.config.window_mode != "context":
        return 0
    going: list[str] = []
    for item_id in state.window.items:
        going.append(item_id)
        if item_id == upto:
            break
    text = previous_text(state, [*state.window.previous, *going], heard)
    return text_tokens(text) if text else 0
