"""The promise about the context window, worked out from what a world knows."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from core.session import effects as fx
from core.session import events as e
from core.session.history import history
from core.session.machine import Step

if TYPE_CHECKING:
    from tests.core.session.world import World


def check_window(world: World, result: Step) -> None:
    """window: prefix + units is what is said to be the lane's length; it is below the marks, whole units left, and what has
    left is told no more."""
    for turn in history(world.state):
        assert turn.item_id not in world.left_window, "window: what has left is told"
    told = iter([effect for effect in result.effects if isinstance(effect, fx.OpenLane | fx.Respond)])
    slid: e.WindowSlid | None = None
    for record in result.records:
        match record.event:
            case e.WindowSlid():
                slid = record.event
            case e.LaneTruncated() if not world.state.can_truncate:
                next(told)
            case e.LaneOpened(tokens=tokens) | e.ResponseStarted(prompt_tokens=tokens):
                _check_lane(world, next(told), tokens, slid)
                slid = None


def _check_lane(world: World, lane: fx.OpenLane | fx.Respond, tokens: int, slid: e.WindowSlid | None) -> None:
    config, limit = world.state.config, world.state.lane_tokens_max
    kept = [turn for turn in lane.history if not turn.item_id]
    turns = [turn for turn in lane.history if turn.item_id]
    prefix = sum(map(_estimate, [lane.instructions, *(turn.text or "" for turn in kept)])) + world.excess_tokens
    units = [8 + world.spoke_ms[turn.item_id] // 40 if turn.text is None else _estimate(turn.text) for turn in turns]
    units.append(256 * sum(len(turn.images) for turn in turns))
    assert tokens == prefix + sum(units), f"window: {tokens} tokens, {prefix} + {units}"
    assert len(kept) <= (config.window_mode == "context"), "window: text of dropped turns is told"
    assert sum(len(turn.text or "") for turn in kept) // 4 <= config.window_previous_tokens, "window: too much kept"
    high = min(config.window_high_tokens, limit * 3 // 4) if limit else config.window_high_tokens
    starts = [a.role != "user" and b.role == "user" for a, b in pairwise(turns)]
    if config.window_mode != "off" and any(starts):
        assert tokens <= high, f"window: {tokens} tokens, at most {high}"
    assert not limit or tokens - world.excess_tokens <= limit, f"window: {tokens} tokens, a lane holds {limit}"
    if slid is not None:
        assert [turn.role for turn in turns[:1]] == ["user"], "window: a unit was cut"
        assert slid.tokens_after == tokens, f"window: {slid} leaves {tokens} tokens"
        assert slid.dropped_units > 0
        assert tokens <= config.window_low_tokens or not any(starts), f"window: {tokens} tokens after {slid}"


def _estimate(text: str) -> int:
    return 8 + len(text.encode()) // 4
