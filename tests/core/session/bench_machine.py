"""How fast the machine is: ``make bench-core`` prints a table. Nothing here fails for being slow; ``test_speed.py`` may."""

from __future__ import annotations

from typing import Any

import pytest

from core.session.apply import fold
from tests.core.session import measure


@pytest.mark.parametrize("goal", [f"{measure.FOLD_GOAL_MS} ms"])
def test_fold_of_a_busy_hour(benchmark: Any, goal: str) -> None:
    records = measure.busy_hour()
    state = benchmark.pedantic(fold, (records,), rounds=20, warmup_rounds=1)
    assert state.position == len(records) > 36_000


@pytest.mark.parametrize("goal", [f"{measure.BARGE_IN_GOAL_US} us"])
@pytest.mark.parametrize("turns", [measure.SHORT_TALK, measure.LONG_TALK, measure.LONGER_TALK])
def test_barge_in_after_so_many_turns(benchmark: Any, turns: int, goal: str) -> None:
    talk = measure.LongTalk(turns)
    benchmark.pedantic(talk.barge_in, setup=talk.answer, teardown=talk.go_on, rounds=50, warmup_rounds=5)
