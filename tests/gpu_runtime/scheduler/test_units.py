"""The unit scheduler under virtual time: order, misses, admission, bounds."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.session.time_units import NS_PER_MS
from gpu_runtime.scheduler.units import Admission, Refused, SchedulerOptions, Ticket, UnitScheduler


def scheduler(sessions: int = 0, **options: float) -> UnitScheduler:
    """With so many sessions in it, called s0, s1 ..."""
    made = UnitScheduler(SchedulerOptions(**{"unit_ms": 1_000, "sessions_max": 200, "running_max": 1} | options))  # type: ignore[arg-type]
    for number in range(sessions):
        assert made.admit(f"s{number}", 10) is Admission.ADMITTED
    return made


def ms(value: float) -> int:
    return round(value * NS_PER_MS)


def drain(units: UnitScheduler, now_ns: int, took_ns: int) -> list[tuple[str, int]]:
    """Run what waits, one after another; (session, end) in the order of running."""
    ran = []
    while (ticket := units.start(now_ns)) is not None:
        now_ns += took_ns
        units.done(ticket, now_ns)
        ran.append((ticket.session, now_ns))
    return ran


def test_the_earliest_deadline_runs_first() -> None:
    units = scheduler(3)
    for session, at_ms in (("s2", 0), ("s0", 5), ("s1", 9)):
        units.arrive(session, ms(at_ms))
    assert [session for session, _ in drain(units, ms(10), ms(1))] == ["s2", "s0", "s1"]


def test_a_session_runs_one_unit_at_a_time_in_order() -> None:
    units = scheduler(1, running_max=4)
    first, second = units.arrive("s0", 0), units.arrive("s0", 1)
    assert units.start(2) is first
    assert units.start(2) is None
    units.done(first, 3)
    assert units.start(3) is second


def test_only_so_many_run_at_once() -> None:
    units = scheduler(5, running_max=2)
    for number in range(5):
        units.arrive(f"s{number}", number)
    running = [units.start(9), units.start(9)]
    assert None not in running
    assert units.start(9) is None
    units.done(running[0], 10)  # type: ignore[arg-type]
    assert units.start(10) is not None


def test_units_of_a_busy_engine_gather() -> None:
    units = scheduler(5, running_max=9, gather_ms=100, gather_from=2)
    assert units.due_ns() is None
    for number in range(2):
        units.arrive(f"s{number}", ms(number))
        assert units.start(ms(number)) is not None  # few run: at once
    for number in (2, 3):
        units.arrive(f"s{number}", ms(number))
        assert units.start(ms(number)) is None
    assert units.due_ns() == ms(101)
    assert {units.start(ms(101)).session, units.start(ms(101)).session} == {"s2", "s3"}  # type: ignore[union-attr]
    units.arrive("s4", ms(150))
    assert units.start(ms(150)) is None
    assert units.due_ns() == ms(201)


def test_a_miss_is_a_unit_that_ends_after_its_deadline() -> None:
    units = scheduler(2)
    units.arrive("s0", 0)
    units.arrive("s1", 0)
    first = units.start(0)
    assert first is not None
    report = units.done(first, ms(1_000))
    assert (report.late_ns, report.took_ns) == (0, ms(1_000))
    second = units.start(ms(1_000))
    assert second is not None
    report = units.done(second, ms(1_250))
    assert (report.late_ns, report.queued_ns) == (ms(250), ms(1_000))
    assert units.statistics().deadline_misses == 1
    assert units.statistics().units_done == 2


def test_a_session_that_is_far_behind_is_refused_and_others_are_not() -> None:
    units = scheduler(2, backlog_max=3)
    for at in range(3):
        units.arrive("s0", at)
    with pytest.raises(Refused) as caught:
        units.arrive("s0", 4)
    assert caught.value.code == "lane_behind"
    units.arrive("s1", 4)
    assert len(drain(units, 5, 1)) == 4


def test_who_left_is_not_served_and_holds_nobody_up() -> None:
    units = scheduler(2, running_max=1)
    running = units.arrive("s0", 0)
    units.arrive("s0", 1)
    units.arrive("s1", 2)
    assert units.start(3) is running
    units.leave("s0")
    assert units.start(3) is None
    units.done(running, 4)
    assert [session for session, _ in drain(units, 5, 1)] == ["s1"]
    with pytest.raises(Refused) as caught:
        units.arrive("s0", 6)
    assert caught.value.code == "session_unknown"


def test_a_cancelled_unit_makes_way_for_the_session_s_next() -> None:
    units = scheduler(1)
    first, second = units.arrive("s0", 0), units.arrive("s0", 1)
    units.cancel(first)
    assert units.start(2) is second
    units.cancel(second)  # it runs: of no effect
    units.done(second, 3)
    assert units.statistics().units_waiting == 0


def test_admission_by_count_and_by_memory() -> None:
    units = scheduler(0, sessions_max=2, kv_tokens=100)
    assert units.admit("a", 60) is Admission.ADMITTED
    assert units.admit("a", 1) is Admission.EXISTS
    assert units.admit("b", 41) is Admission.KV_FULL
    assert units.admit("b", 40) is Admission.ADMITTED
    assert units.admit("c", 0) is Admission.SESSIONS_FULL
    units.leave("a")
    assert units.admit("c", 60) is Admission.ADMITTED
    assert units.statistics().refused == 2


def test_admission_by_measured_unit_time() -> None:
    units = scheduler(0, load_max=0.9)
    for _ in range(100):
        units.calibrate(sessions=10, took_ns=ms(500))
    for number in range(18):  # 500 ms * 18 / 10 = 900 ms
        assert units.admit(f"s{number}", 1) is Admission.ADMITTED
    assert units.admit("s18", 1) is Admission.TOO_SLOW
    assert units.predicted_ms(20) == pytest.approx(1_000)


def test_some_sessions_are_let_in_however_slow_units_are() -> None:
    units = scheduler(0, sessions_min=2)
    units.calibrate(sessions=1, took_ns=ms(60_000))
    assert [units.admit(name, 1) for name in "abc"] == [Admission.ADMITTED, Admission.ADMITTED, Admission.TOO_SLOW]


def test_units_that_turn_out_quicker_let_more_in() -> None:
    units = scheduler(0, measured_units=20)
    units.calibrate(sessions=1, took_ns=ms(800))
    assert units.admit("s0", 1) is Admission.ADMITTED
    assert units.admit("s1", 1) is Admission.TOO_SLOW
    for at in range(20):
        ticket = units.arrive("s0", ms(at * 1_000))
        assert units.start(ms(at * 1_000)) is ticket
        units.done(ticket, ms(at * 1_000 + 300))
    assert units.admit("s1", 1) is Admission.ADMITTED


def test_who_may_wait_comes_in_by_turns() -> None:
    units = scheduler(0, sessions_max=1, waiting_max=2, kv_tokens=100)
    assert units.admit("a", 10) is Admission.ADMITTED
    assert units.admit("b", 10) is Admission.QUEUED
    assert units.admit("c", 10) is Admission.QUEUED
    assert units.admit("d", 10) is Admission.SESSIONS_FULL
    assert units.admit("whale", 101) is Admission.SESSIONS_FULL
    assert units.admit_waiting() == []
    units.leave("a")
    assert units.admit("e", 10) is Admission.SESSIONS_FULL, "nobody overtakes those who wait"
    assert units.admit_waiting() == ["b"]
    units.leave("c")
    units.leave("b")
    assert units.admit_waiting() == []
    assert units.statistics().sessions_waiting == 0


@given(
    st.lists(st.tuples(st.sampled_from(["arrive", "start", "done", "leave", "admit"]), st.integers(0, 4)), max_size=80)
)
def test_whatever_happens_the_books_balance(steps: list[tuple[str, int]]) -> None:
    units = scheduler(5, running_max=2, backlog_max=2)
    running: list[Ticket] = []
    waiting: list[Ticket] = []
    inside = {f"s{number}" for number in range(5)}
    for now_ns, (verb, number) in enumerate(steps):
        session = f"s{number}"
        match verb:
            case "arrive":
                try:
                    waiting.append(units.arrive(session, now_ns))
                except Refused:
                    mine = [ticket for ticket in waiting if ticket.session == session]
                    assert session not in inside or len(mine) == 2
            case "start":
                ticket = units.start(now_ns)
                busy = {ticket.session for ticket in running}
                able = [ticket for ticket in waiting if ticket.session not in busy]
                assert ticket == (min(able) if able and len(running) < 2 else None)
                if ticket is not None:
                    waiting.remove(ticket)
                    running.append(ticket)
            case "done" if running:
                units.done(running.pop(number % len(running)), now_ns)
            case "leave":
                # a session whose unit runs may leave and come back; the old unit then no longer counts as its own
                if not any(ticket.session == session for ticket in running):
                    units.leave(session)
                    inside.discard(session)
                    waiting = [ticket for ticket in waiting if ticket.session != session]
            case "admit":
                units.admit(session, 1)
                inside.add(session)
        statistics = units.statistics()
        assert (statistics.units_waiting, statistics.units_running) == (len(waiting), len(running))
        assert statistics.sessions == len(inside)


def simulate(sessions: int, minutes: int, work_ms: float, places: int, seed: int) -> UnitScheduler:
    """Sessions at random phases on an engine that has ``places`` servers of ``work_ms`` a unit."""
    units = scheduler(sessions, running_max=places)
    chance = random.Random(seed)
    events: list[tuple[int, int, str, object]] = []
    for number in range(sessions):
        phase = chance.randrange(1_000)
        for unit in range(minutes * 60):
            heapq.heappush(events, (ms(phase + unit * 1_000), len(events), "arrive", f"s{number}"))
    serial = len(events)
    while events:
        now_ns, _, verb, what = heapq.heappop(events)
        if verb == "arrive":
            units.arrive(str(what), now_ns)
        else:
            units.done(what, now_ns)  # type: ignore[arg-type]
        while (ticket := units.start(now_ns)) is not None:
            serial += 1
            heapq.heappush(events, (now_ns + ms(work_ms), serial, "done", ticket))
    return units


def test_five_minutes_at_nine_tenths_of_the_capacity_without_a_miss() -> None:
    statistics = simulate(sessions=36, minutes=5, work_ms=100, places=4, seed=1).statistics()
    assert statistics.units_done == 36 * 300
    assert statistics.deadline_misses == 0
    assert statistics.unit_ms_p99 < 1_000


def test_beyond_the_capacity_misses_are_counted() -> None:
    with pytest.raises(Refused, match="wait already"):
        simulate(sessions=44, minutes=1, work_ms=100, places=4, seed=1)
