"""A worker has died, and all of its lanes are opened at once on another one: who is first, and what the others notice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import attrs
import pytest

from gpu_runtime.engines.port import EngineLimits, Tokens, Unit
from gpu_runtime.engines.requests import Piece
from gpu_runtime.engines.streamed import PREFILLS_AT_ONCE, StreamedLanes
from gpu_runtime.scheduler.server import UnitServer
from gpu_runtime.scheduler.units import SchedulerOptions, UnitScheduler
from tests.gpu_runtime.engines import virtual_loop
from tests.gpu_runtime.engines.fake import FakeOptions, FakeRequest
from tests.gpu_runtime.engines.fake_steps import StepOptions, SteppedRequests

SESSIONS = 64
LIMITS = EngineLimits(lane_tokens_max=2_048, kv_tokens=262_144, block_tokens=16, requests_max=SESSIONS)
STEPS = StepOptions()
"""A 25th of what an H200 has to do with 64 lanes of 4,000 tokens, at a 25th of its speed."""

UNIT_S = 1.0
UNIT = Unit((Tokens((11,)),), 20)
ON_THEIR_OWN_S = 3.0


@attrs.define
class Refill:
    """Sessions that all come back, and talk as soon as they are."""

    at_once: int = PREFILLS_AT_ONCE
    steps: StepOptions = STEPS
    sessions: int = SESSIONS
    begun: list[str] = attrs.field(factory=list)
    """In the order in which the engine began with their lanes."""
    due_s: dict[str, float] = attrs.field(factory=dict)
    back_s: dict[str, float] = attrs.field(factory=dict)
    misses: int = 0
    longest_step_s: float = 0.0

    def play(self) -> Refill:
        virtual_loop.run(self._play())
        return self

    async def _play(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_loop.VirtualLoop)
        engine = SteppedRequests(FakeOptions(limits=LIMITS), self.steps)
        made = engine.request

        def request(name: str) -> FakeRequest:
            lane = made(name)
            push = lane.push

            def first_push(*rest: Any) -> AsyncGenerator[Piece, None]:
                self.begun.append(name.partition("/")[0])
                lane.push = push  # type: ignore[method-assign]
                return push(*rest)

            lane.push = first_push  # type: ignore[method-assign]
            return lane

        engine.request = request  # type: ignore[method-assign]
        lanes = StreamedLanes(
            engine,
            clock_ns=loop.now_ns,
            slide_piece_tokens=self.steps.piece_tokens,
            prefills_at_once=self.at_once,
        )
        options = SchedulerOptions(unit_ms=round(UNIT_S * 1e3), sessions_max=SESSIONS, running_max=SESSIONS)
        server = UnitServer(lanes, UnitScheduler(options), loop.now_ns)
        chance = random.Random(5)
        all_back = asyncio.Event()

        async def talk(name: str, phase_s: float, history: Tokens) -> None:
            await server.open(name, [history], kv_tokens=1_000, due_ns=round(self.due_s[name] * 1e9))
            self.back_s[name] = loop.time()
            if len(self.back_s) == self.sessions:
                loop.call_later(ON_THEIR_OWN_S, all_back.set)
            while not all_back.is_set():
                await asyncio.sleep(UNIT_S - (loop.time() - phase_s) % UNIT_S)
                async with aclosing(server.feed(name, UNIT)) as events:
                    async for _ in events:
                        pass

        async with asyncio.TaskGroup() as group:
            for number in range(self.sessions):
                name, phase_s = f"session{number}", chance.random() * UNIT_S
                self.due_s[name] = phase_s + UNIT_S
                history = Tokens(tuple(chance.randrange(5, 1_000) for _ in range(chance.randrange(100, 225))))
                group.create_task(talk(name, phase_s, history))
        self.misses = server.statistics().deadline_misses
        self.longest_step_s = engine.longest_s


@pytest.fixture(scope="module")
def refill() -> Refill:
    return Refill().play()


def test_those_that_are_back_miss_no_unit_while_the_others_come_back(refill: Refill) -> None:
    assert len(refill.back_s) == SESSIONS
    first, last = min(refill.back_s.values()), max(refill.back_s.values())
    assert last - first > 5 * UNIT_S, "they had the time to miss some"
    assert refill.misses == 0


def test_whoever_is_due_first_is_back_first(refill: Refill) -> None:
    by_due = sorted(refill.due_s, key=refill.due_s.__getitem__)
    # those that found the line empty asked before anybody else was there
    early, rest = refill.begun[:PREFILLS_AT_ONCE], refill.begun[PREFILLS_AT_ONCE:]
    assert rest == [name for name in by_due if name not in early]
    assert sorted(refill.back_s.values())[SESSIONS // 2] < max(refill.back_s.values()) * 0.6, "one after another"


def test_a_step_holds_a_piece_of_a_few_lanes_at_most_once_somebody_speaks(refill: Refill) -> None:
    """What nobody is there to wait for may be large: the first lanes."""
    assert refill.longest_step_s <= STEPS.base_s + STEPS.tokens_max * STEPS.prompt_s + 1e-9


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Refill(at_once=SESSIONS), id="all at once, in pieces"),
        pytest.param(Refill(steps=attrs.evolve(STEPS, piece_tokens=128)), id="a few at once, each in one go"),
    ],
)
def test_otherwise_units_are_late(other: Refill) -> None:
    """Both are needed: that is what the tests above are able to notice."""
    assert other.play().misses > 0
