"""How fast the machine is: ``python -m tests.core.session.measure`` prints three figures.

The fold of a busy hour (5 inputs and 5 outputs a second, 36,000 events, goal 100 ms), and a whole barge-in: decide, apply,
settle, effects (goal 100 us), after a few turns and after so many that the machine forgets the oldest. Times are those of the
processor, so that what else runs on a machine counts little.
"""

from __future__ import annotations

import copy
import time

from core.session import commands as c
from core.session import events as e
from core.session.apply import fold
from core.session.machine import step
from core.session.state import SessionState
from tests.core.session.world import MS, World

FOLD_GOAL_MS = 100
BARGE_IN_GOAL_US = 100
LONG_BARGE_IN_GOAL_US = 300

INPUTS = OUTPUTS = 18_000
OUTPUTS_PER_ANSWER = 25


def busy_hour() -> list[e.Record]:
    """The log of an hour: an answer of five seconds after each five seconds of speech."""
    world = World()
    world.checking = False
    for _ in range(OUTPUTS // OUTPUTS_PER_ANSWER):
        for _ in range(OUTPUTS_PER_ANSWER):
            world.say(200)
            world.wait(200)
        world.do(c.CommitInput(True))
        world.make(OUTPUTS_PER_ANSWER, audio_ms=200)
        world.finish()
        world.deliver()
        world.wait(1)
    return world.records


def fold_ms(records: list[e.Record], rounds: int = 5) -> float:
    """The best of a few folds, in ms."""
    times = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        fold(records)
        times.append(time.thread_time_ns() - began)
    return min(times) / MS


def barge_in_us(rounds: int = 300, turns: int = 5) -> tuple[float, float]:
    """The best and the median barge-in, in us, into a session in which ``turns`` were answered before."""
    world = World()
    world.checking = False
    for _ in range(turns):
        world.answered(10)
    world.ask()
    world.make(10)
    world.deliver()
    world.wait(400)
    times = []
    for _ in range(rounds):
        state: SessionState = copy.deepcopy(world.state)
        cursor = world.cursor()
        began = time.thread_time_ns()
        result = step(state, c.CancelOutput("barge_in"), world.now_ns, cursor)
        times.append(time.thread_time_ns() - began)
        assert result.refusal is None
    return min(times) / 1_000, sorted(times)[rounds // 2] / 1_000


def main() -> None:
    """Print them."""
    records = busy_hour()
    print(f"fold of {len(records)} records: {fold_ms(records):.1f} ms (goal {FOLD_GOAL_MS} ms)")
    for turns, goal in ((5, BARGE_IN_GOAL_US), (60, LONG_BARGE_IN_GOAL_US)):
        best_us, median_us = barge_in_us(turns=turns)
        print(
            f"barge-in after {turns} turns, from command to effects: {best_us:.0f} us at best, {median_us:.0f} us in "
            f"the median (goal {goal} us)"
        )


if __name__ == "__main__":
    main()
