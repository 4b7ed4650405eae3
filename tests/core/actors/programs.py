"""Programs of story verbs: what Hypothesis draws, and what a plain test can repeat.

A program is a list of steps ``(verb, argument ..., wait_ms)``. One that fails is printed as a call of ``play``, with the
seed of trio's scheduler, and runs again as it is.
"""

from __future__ import annotations

import random
from typing import Any

import attrs
import trio
from hypothesis import strategies as st

from core.session.config import SessionConfig
from tests.core.actors.stories import OPEN_MICROPHONE, PUSH_TO_TALK, Story, open_story

Program = list[tuple[Any, ...]]

CONFIGS: dict[str, SessionConfig] = {
    "push_to_talk": PUSH_TO_TALK,
    "open_microphone": OPEN_MICROPHONE,
    "heard_nothing": attrs.evolve(PUSH_TO_TALK, unacked="heard_nothing"),
    "paced": attrs.evolve(PUSH_TO_TALK, max_client_lead_ms=400),
}

WAITS_MS = st.sampled_from([0, 0.3, 1, 5, 20, 100, 400, 1_500])

TALK = st.one_of(
    st.tuples(st.just("say"), st.sampled_from([100, 400])),
    st.tuples(st.just("ask")),
    st.tuples(st.just("ask")),
    st.tuples(st.just("barge_in")),
    st.tuples(st.just("barge_in")),
    st.tuples(st.just("create")),
    st.tuples(st.just("ack"), st.sampled_from([0.0, 0.5, 1.0])),
    st.tuples(st.sampled_from(["pause", "unpause"])),
)
TROUBLE = st.one_of(
    st.tuples(st.just("drop_link"), st.sampled_from([0, 1, 2, 5])),
    st.tuples(st.just("resume"), st.sampled_from([-1, -1, 0])),
    st.tuples(st.just("resume"), st.sampled_from([-1, -1, 0])),
    st.tuples(st.sampled_from(["take_over", "move_quietly"])),
    st.tuples(st.just("kill_runtime")),
    st.tuples(st.just("kill_server")),
    st.tuples(st.just("fail_append"), st.booleans()),
    st.tuples(st.just("slow_store"), st.sampled_from([0, 3, 40])),
    st.tuples(st.sampled_from(["stall_socket", "unstall_socket"])),
    st.tuples(st.just("step_clock_back"), st.sampled_from([0.5, 3_600])),
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A turn to begin with, then talk and trouble."""
    steps = draw(st.lists(st.tuples(st.one_of(TALK, TROUBLE), WAITS_MS), min_size=1, max_size=16))
    return [("ask", draw(WAITS_MS)), *((*step, wait_ms) for step, wait_ms in steps)]


@attrs.frozen
class Setting:
    """What a program is played in."""

    config: str = "push_to_talk"
    latency_ms: int = 0
    units: int = 10
    rtf: float = 0.5
    late_ms: int = -1
    told: bool = True
    """Whether the store tells servers of terms that others take."""
    seed: int = 0


settings = st.builds(
    Setting,
    config=st.sampled_from(list(CONFIGS)),
    latency_ms=st.sampled_from([0, 0, 30, 300]),
    units=st.sampled_from([2, 10, 30]),
    rtf=st.sampled_from([0.05, 0.5]),
    late_ms=st.sampled_from([-1, 0, 2, 30]),
    told=st.booleans(),
    seed=st.integers(0, 2**16),
)


async def take_step(story: Story, step: tuple[Any, ...]) -> None:
    """One verb, and the wait after it."""
    verb, *arguments, wait_ms = step
    if verb in ("take_over", "move_quietly") and len(story.servers) > 4:
        verb = "resume"
    done = getattr(story, verb)(*arguments)
    if done is not None:
        await done
    await story.wait(wait_ms)


async def play(setting: Setting, program: Program) -> None:
    """Play a program; everything that is promised is checked on the way and at the end."""
    scheduler: random.Random = trio._core._run._r  # type: ignore[attr-defined]
    scheduler.seed(setting.seed)
    model = {
        "answer_units": setting.units,
        "rtf": setting.rtf,
        "late_after_abort_ms": setting.late_ms,
        "transcript": "turn {segment}",
    }
    async with open_story(CONFIGS[setting.config], latency_s=setting.latency_ms / 1000, **model) as story:
        story.database.tells_terms = setting.told
        for step in program:
            await take_step(story, step)


def printed(setting: Setting, program: Program) -> str:
    """A program as a test may hold it."""
    lines = "".join(f"        {step!r},\n" for step in program)
    return f"await play(\n    {setting!r},\n    [\n{lines}    ],\n)"
