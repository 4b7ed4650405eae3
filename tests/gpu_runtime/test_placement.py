"""Which worker holds which session: by load, sticky, never beyond a worker's room."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.host.placement import Placement


def placement(*rooms: int) -> Placement:
    made = Placement(len(rooms))
    for worker, room in enumerate(rooms):
        if room:
            made.gain(worker, room)
    return made


def test_sessions_spread_over_the_workers() -> None:
    made = placement(4, 4)
    assert [made.add(f"s{number}") for number in range(4)] == [0, 1, 0, 1]


def test_a_larger_worker_gets_more() -> None:
    made = placement(2, 6)
    assert Counter(made.add(f"s{number}") for number in range(4)) == {0: 1, 1: 3}


def test_a_session_stays_where_it_is() -> None:
    made = placement(4, 4)
    assert made.add("a") == 0
    assert made.add("b") == 1
    made.remove("b")
    assert made.add("a") == 0


def test_whoever_finds_no_room_waits_in_line() -> None:
    made = placement(1)
    assert [made.add(name) for name in "abc"] == [0, None, None]
    made.remove("a")
    assert made.place_waiting() == [("b", 0)]
    assert made.waiting == 1


def test_whoever_lost_a_worker_comes_before_those_who_never_had_one() -> None:
    made = placement(2, 1)
    assert [made.add(name) for name in "abcd"] == [0, 1, 0, None]
    lost = made.lose(0)
    assert lost == ["a", "c"]
    assert made.worker_of("a") is None
    made.wait(lost)
    assert made.place_waiting() == []
    made.remove("b")
    assert made.place_waiting() == [("a", 1)]
    made.gain(0, 2)
    assert made.place_waiting() == [("c", 0), ("d", 0)]


def test_when_all_have_died_the_first_that_is_back_leaves_the_others_their_part() -> None:
    made = placement(8, 8, 8)
    names = [f"s{number}" for number in range(6)]
    assert [made.add(name) for name in names] == [0, 1, 2, 0, 1, 2]
    for worker in (2, 1, 0):
        made.wait(made.lose(worker))
    made.gain(1, 8)
    assert [worker for _, worker in made.place_waiting()] == [1, 1]
    assert made.expecting
    assert made.add("late") is None, "it came last"
    made.gain(0, 8)
    made.place_waiting()
    assert [made.held(worker) for worker in range(3)] == [3, 3, 0]
    assert made.expecting
    made.expect_no_more()
    assert [name for name, _ in made.place_waiting()] == ["late"]
    assert not made.expecting
    made.gain(2, 8)
    assert made.add("newcomer") == 2


def test_when_one_has_died_the_others_take_its_sessions_at_once() -> None:
    made = placement(8, 8)
    for name in "abcd":
        made.add(name)
    made.wait(made.lose(0))
    assert [worker for _, worker in made.place_waiting()] == [1, 1]
    assert not made.expecting


def test_one_who_left_while_it_was_told_of_its_loss_does_not_wait() -> None:
    made = placement(1)
    made.add("a")
    made.lose(0)
    made.remove("a")
    assert made.waiting == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9)),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("lose"), st.integers(0, 2)),
        st.tuples(st.just("gain"), st.integers(0, 2)),
        st.tuples(st.just("expect_no_more"), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS, st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_no_worker_is_overfull_nobody_moves_and_nobody_waits_beside_room(
    steps: list[tuple[str, int]], rooms: list[int]
) -> None:
    made = Placement(3)
    up: set[int] = set()
    here: dict[int, int | None] = {}
    for step, number in steps:
        touched: set[int] = set()
        if step == "add":
            made.add(f"s{number}")
            touched = {number} if number not in here else set()
            here.setdefault(number, None)
        elif step == "remove":
            made.remove(f"s{number}")
            here.pop(number, None)
        elif step == "lose":
            lost = made.lose(number)
            touched = {int(name[1:]) for name in lost}
            made.wait(lost)
            up.discard(number)
        elif step == "expect_no_more":
            made.expect_no_more()
        elif number not in up:
            made.gain(number, rooms[number])
            up.add(number)
        touched |= {int(name[1:]) for name, _ in made.place_waiting()}
        now = {session: made.worker_of(f"s{session}") for session in here}
        assert all(now[session] == here[session] for session in here if session not in touched)
        here = now
        held = Counter(worker for worker in here.values() if worker is not None)
        assert all(held[worker] == made.held(worker) <= rooms[worker] for worker in range(3))
        assert set(held) <= up
        assert made.waiting == sum(worker is None for worker in here.values())
        full = all(made.held(worker) == rooms[worker] for worker in up)
        assert made.expecting == (bool(made.waiting) and not full), "nobody waits beside room for good"
