"""What the machine's speed is measured on: the log of a busy hour, and a barge-in.

``make bench-core`` prints how fast it is (``bench_machine.py``); ``test_speed.py`` holds it loosely. Times are those of the
processor, so that what else runs on a machine counts less.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from core.session import commands as c
from core.session import events as e
from core.session.machine import step
from tests.core.session.world import MS, World

FOLD_GOAL_MS = 100
BARGE_IN_GOAL_US = 100

INPUTS = OUTPUTS = 18_000
OUTPUTS_PER_ANSWER = 25
BARGE_IN = c.CancelOutput("barge_in")

SHORT_TALK, LONG_TALK, LONGER_TALK = 5, 60, 200
"""Turns that were answered before the barge-in; in the longest the machine has forgotten the oldest answers' ledgers."""


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


class LongTalk:
    """A session in which ``turns`` were answered, and then one barge-in after another, each into the answer to a new turn."""

    def __init__(self, turns: int) -> None:
        self.world = World()
        self.world.checking = False
        for _ in range(turns):
            self.world.answered(10)

    def answer(self) -> None:
        """The next answer, a part of which was played."""
        self.world.ask()
        self.world.make(10)
        self.world.deliver()
        self.world.wait(400)
        self.cursor = self.world.cursor()

    def barge_in(self) -> None:
        """Decide, apply, settle and effects, from the command to the next lane: what is measured."""
        self.result = step(self.world.state, BARGE_IN, self.world.now_ns, self.cursor)

    def go_on(self) -> None:
        """After it."""
        assert self.result.refusal is None
        self.world._note(BARGE_IN, self.result)


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
    talk, times = LongTalk(turns), []
    for _ in range(rounds):
        talk.answer()
        began = time.thread_time_ns()
        talk.barge_in()
        times.append(time.thread_time_ns() - began)
        talk.go_on()
    return min(times) / 1_000
