"""The machine's speed, held loosely: a busy machine must not fail this, a loop in the wrong place must.

``python -m tests.core.session.measure`` prints the figures themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.session import measure

SLACK = 5
"""Times the goal."""


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("figure", "goal"),
    [
        (lambda: measure.fold_ms(measure.busy_hour(), rounds=3), measure.FOLD_GOAL_MS),
        (lambda: measure.barge_in_us(rounds=60)[0], measure.BARGE_IN_GOAL_US),
        (lambda: measure.barge_in_us(rounds=20, turns=60)[0], measure.LONG_BARGE_IN_GOAL_US),
    ],
    ids=["fold", "barge-in", "barge-in after a long talk"],
)
def test_speed(figure: Callable[[], float], goal: float) -> None:
    assert figure() < goal * SLACK
