"""Who is parked for whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.engines.room import Hold, Room


def resting(room: Room[Hold], blocks: int, now_ns: int) -> Hold:
    hold = Hold()
    assert room.enter(hold, blocks, now_ns) is not None
    room.rest(hold, blocks)
    return hold


def test_the_lane_that_was_fed_last_makes_room_first() -> None:
    room: Room[Hold] = Room(blocks_max=30, holds_max=9)
    first, second, third = (resting(room, 10, now_ns) for now_ns in (1, 2, 3))
    assert room.enter(Hold(), 5, 4) == [third]
    assert room.enter(Hold(), 10, 5) == [second]
    assert room.holds(first)


def test_busy_requests_are_never_parked() -> None:
    room: Room[Hold] = Room(blocks_max=10, holds_max=2)
    busy = Hold()
    assert room.enter(busy, 6, 1) == []
    assert room.enter(Hold(), 5, 2) is None
    room.rest(busy, 6)
    assert room.enter(Hold(), 5, 3) == [busy]


def test_places_count_as_blocks_do() -> None:
    room: Room[Hold] = Room(blocks_max=100, holds_max=2)
    resting(room, 1, 1)
    newest = resting(room, 1, 2)
    assert room.enter(Hold(), 1, 3) == [newest]
    assert len(room) == 2


def test_a_request_may_grow_in_its_own_place() -> None:
    room: Room[Hold] = Room(blocks_max=10, holds_max=1)
    hold = resting(room, 6, 1)
    assert room.enter(hold, 10, 2) == []
    assert room.blocks_held == 10


def test_what_can_never_fit_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(ValueError, match="more than"):
        Room[Hold](blocks_max=10, holds_max=1).enter(Hold(), 11, 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12), st.sampled_from(["enter", "rest", "leave"]))))
def test_the_bounds_hold_whatever_is_asked(steps: list[tuple[int, int, str]]) -> None:
    room: Room[Hold] = Room(blocks_max=12, holds_max=3)
    holds = [Hold() for _ in range(6)]
    for now_ns, (number, blocks, verb) in enumerate(steps):
        hold = holds[number]
        if verb == "enter" and not hold.busy:
            was_busy = [other for other in holds if other.busy]
            room.enter(hold, blocks, now_ns)
            assert all(room.holds(other) for other in was_busy)
        elif verb == "rest" and blocks <= hold.blocks:
            room.rest(hold, blocks)
        elif verb == "leave":
            room.leave(hold)
        held = [other for other in holds if room.holds(other)]
        assert room.blocks_held == sum(other.blocks for other in holds) <= 12
        assert len(room) == len(held) <= 3
        assert all(not other.blocks and not other.busy for other in holds if other not in held)
