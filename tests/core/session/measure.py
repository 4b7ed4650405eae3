"""What the machine's speed is measured on: the log of a busy hour, and a barge-in.

``make bench-core`` prints how fast it is (``bench_machine.py``); ``test_speed.py`` holds it loosely. Times are those of the
processor, so that what else runs on a machine counts less.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

from core.session import commands as c
from core.session import events as e
from core.session.machine import Step, step
from core.session.state import SessionState
from tests.core.session.world import MS, World

FOLD_GOAL_MS = 100
BARGE_IN_GOAL_US = 100

INPUTS = OUTPUTS = 18_000
OUTPUTS_PER_ANSWER = 25

SHORT_TALK, LONG_TALK, LONGER_TALK = 5, 60, 200
"""Turns that were answered before the barge-in; in the longest the machine has forgotten the oldest answers' ledgers."""

BargeIn = tuple[SessionState, c.CancelOutput, int, c.Cursor]
"""The arguments of one step."""


def busy_hour() -> list[e.Record]:
    """5 inputs and 5 outputs a second, 36,000 events and a few: an answer of five seconds after each five of speech."""
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


def barge_ins(turns: int) -> Callable[[], BargeIn]:
    """Makes barge-ins into the same answer of a session in which ``turns`` were answered before: decide, apply, settle and
    effects, from the command to the next lane."""
    world = World()
    world.checking = False
    for _ in range(turns):
        world.answered(10)
    world.ask()
    world.make(10)
    world.deliver()
    world.wait(400)
    cursor = world.cursor()

    def make() -> BargeIn:
        return copy.deepcopy(world.state), c.CancelOutput("barge_in"), world.now_ns, cursor

    return make


def best_ms(do: Callable[[], object], rounds: int) -> float:
    """The best of a few, in ms."""
    times = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        do()
        times.append(time.thread_time_ns() - began)
    return min(times) / MS


def best_barge_in_us(turns: int, rounds: int) -> float:
    """The best of a few, in us."""
    make, times = barge_ins(turns), []
    for _ in range(rounds):
        arguments = make()
        began = time.thread_time_ns()
        result: Step = step(*arguments)
        times.append(time.thread_time_ns() - began)
        assert result.refusal is None
    return min(times) / 1_000
