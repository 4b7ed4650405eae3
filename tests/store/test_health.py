"""When a store counts as faulty, and when as well again."""

from __future__ import annotations

from core.ports.store import Owned, StoreFailed, TermRefused
from store.health import CALM_S, STALLED_S, Health

FULL = StoreFailed("the disk is full")


def test_one_failure_is_no_fault_and_two_in_a_row_are() -> None:
    health = Health()
    health.answered([FULL], 0, 10.0)
    assert health.fault(10.0) is None
    health.answered([FULL], 0, 10.0 + CALM_S / 2)
    assert health.fault(10.0 + CALM_S / 2) == "the disk is full"


def test_failures_far_apart_are_no_fault() -> None:
    health = Health()
    for turn in range(5):
        health.answered([FULL], 0, 2 * CALM_S * turn)
        assert health.fault(2 * CALM_S * turn) is None


def test_small_writes_that_fit_do_not_hide_big_ones_that_do_not() -> None:
    health = Health()
    for turn in range(20):
        health.answered([FULL] if turn % 2 else [None], 0, float(turn))
        assert (health.fault(float(turn)) is not None) == (turn >= 3)


def test_it_is_well_again_after_a_while_without_failures() -> None:
    health = Health()
    health.answered([FULL], 0, 0.0)
    health.answered([FULL], 0, 1.0)
    assert health.fault(1.0 + CALM_S * 0.9) is not None
    assert health.fault(1.0 + CALM_S) is None
    health.answered([FULL], 0, 1.5 + CALM_S)
    assert health.fault(1.5 + CALM_S) is None, "and begins anew"


def test_refusals_and_one_session_s_failure_among_others_are_none() -> None:
    health = Health()
    for turn in range(9):
        health.answered([TermRefused("a newer term")], 0, turn / 10)
        health.answered([FULL, Owned("s", 1, 2)], 0, turn / 10)
        assert health.fault(turn / 10) is None


def test_what_waits_too_long_is_a_fault_until_it_is_answered() -> None:
    health = Health()
    assert health.fault(1_000.0) is None, "nobody asked for anything"
    health.waits(1_000.0)
    health.waits(1_000.0 + STALLED_S)
    assert health.fault(1_000.0 + STALLED_S) is None
    assert health.fault(1_001.0 + STALLED_S) == f"writes have waited for {STALLED_S + 1:.0f} s"
    health.answered([None], 1, 1_002.0 + STALLED_S)
    assert health.fault(1_002.0 + STALLED_S) is None
    assert health.fault(1_003.0 + 2 * STALLED_S) is not None, "the rest waits still"
