"""Holes in the stream: announced, announced later, or lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.client.numbering import GRACE_NUMBERS, HOLES_MAX, NumberLine
from adapters.wire.schema.shapes import merge_ranges, parse_ranges, subtract_ranges

NUMBERS = st.integers(0, 40)
PAIRS = st.tuples(NUMBERS, NUMBERS).map(lambda pair: (min(pair), max(pair)))


def numbers_in(ranges: object) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}  # type: ignore[attr-defined]


def test_a_fresh_stream_begins_where_it_begins() -> None:
    line = NumberLine()
    assert line.arrived(7)
    assert line.arrived(8)
    assert line.take_lost() == ()


def test_what_came_before_is_a_duplicate() -> None:
    line = NumberLine(5)
    assert not line.arrived(5)
    assert line.arrived(6)
    assert not line.arrived(6)
    assert line.duplicates == 2


def test_a_cut_is_announced_after_the_hole() -> None:
    line = NumberLine(0)
    line.arrived(1)
    line.began("a")
    line.arrived(5)
    assert line.take_lost() == ()
    assert line.open_holes == ((2, 4),)
    line.arrived(6)
    line.announced(((2, 4),))
    line.ended("a", known=True)
    assert line.take_lost() == ()
    assert line.skipped == 3


def test_what_the_end_of_the_answer_does_not_name_is_lost() -> None:
    line = NumberLine(0)
    line.arrived(1)
    line.began("a")
    line.arrived(5)
    line.announced(((3, 3),))
    line.ended("a", known=True)
    assert line.take_lost() == ((2, 2), (4, 4))
    assert line.take_lost() == ()


def test_a_hole_with_no_answer_running_waits_for_a_while() -> None:
    line = NumberLine()
    line.arrived(1)
    line.arrived(3)
    assert line.take_lost() == ()
    for number in range(4, 4 + GRACE_NUMBERS):
        line.arrived(number)
    assert line.take_lost() == ((2, 2),)


def test_numbers_announced_ahead_leave_no_hole() -> None:
    line = NumberLine(3)
    line.announced(((4, 6), (8, 8)))
    line.arrived(7)
    line.arrived(9)
    assert line.open_holes == ()
    assert line.skipped == 4


def test_an_answer_that_ran_before_we_came_announces_at_its_end() -> None:
    line = NumberLine(3)
    line.arrived(6)
    line.announced(((4, 5),))
    line.ended("never seen", known=False)
    assert line.take_lost() == ()


def test_holes_are_bounded() -> None:
    line = NumberLine(0)
    line.began("a")
    for number in range(2, 2 * HOLES_MAX + 6, 2):
        line.arrived(number)
    assert len(line.take_lost()) == 2


@given(st.lists(PAIRS, max_size=6), st.lists(PAIRS, max_size=6))
def test_ranges_are_sets_of_numbers(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    merged = merge_ranges(some)
    assert numbers_in(merged) == numbers_in(some)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(merged))
    left = subtract_ranges(some, merge_ranges(others))
    assert numbers_in(left) == numbers_in(some) - numbers_in(others)


@pytest.mark.parametrize("value", [3, [[1]], [[2, 1]], [["1", 2]], [[True, 2]], {"from": 1}])
def test_ranges_of_another_shape_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="range"):
        parse_ranges(value)


@given(st.data())
def test_every_number_is_taken_skipped_or_lost(data: st.DataObject) -> None:
    """Whatever comes, in whatever order it is announced: nothing is counted twice and nothing is forgotten."""
    line = NumberLine(0)
    taken: set[int] = set()
    announced: set[int] = set()
    lost: set[int] = set()
    running = 0
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["arrive", "begin", "end", "announce"])):
            case "arrive":
                number = line.last + data.draw(st.integers(1, 5))
                if line.arrived(number):
                    taken.add(number)
            case "begin":
                running += 1
                line.began(str(running))
            case "end":
                line.ended(str(running), known=True)
            case "announce":
                pair = data.draw(PAIRS)
                line.announced((pair,))
                announced |= numbers_in((pair,))
        lost |= numbers_in(line.take_lost())
    missing = set(range(1, line.last + 1)) - taken
    assert missing == (missing & announced) | lost | numbers_in(line.open_holes)
    assert not lost & numbers_in(line.open_holes)
