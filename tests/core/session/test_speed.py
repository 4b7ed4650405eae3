"""The machine's speed, held loosely: a busy machine must not fail this, a loop in the wrong place must.

``make bench-core`` prints the figures themselves.
"""

from __future__ import annotations

import pytest

from core.session.apply import fold
from tests.core.session import measure

SLACK = 5
"""Times the goal."""


@pytest.mark.no_cover
def test_an_hour_is_folded_in_time() -> None:
    records = measure.busy_hour()
    assert measure.best_ms(lambda: fold(records), rounds=3) < measure.FOLD_GOAL_MS * SLACK


@pytest.mark.no_cover
@pytest.mark.parametrize("turns", [measure.SHORT_TALK, measure.LONG_TALK])
def test_a_barge_in_is_decided_in_time(turns: int) -> None:
    assert measure.best_barge_in_us(turns, rounds=60) < measure.BARGE_IN_GOAL_US * SLACK
