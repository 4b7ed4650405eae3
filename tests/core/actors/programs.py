"""Programs of story verbs: what Hypothesis draws, and what a plain test can repeat.

A program is a list of steps ``(verb, argument ..., wait_ms)``. One that fails is printed as a call of ``play``, with the
seed of trio's scheduler, and runs again as it is.
"""

from __future__ import annotations

import random
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
import trio
from hypothesis import strategies as st

from core.session.config import SessionConfig, Tool
from store.memory import MemoryDatabase
from tests.core.actors.sqlite_database import SqliteDatabase
from tests.core.actors.stories import OPEN_MICROPHONE, PUSH_TO_TALK, Story, open_story

Program = list[tuple[Any, ...]]

CONFIGS: dict[str, SessionConfig] = {
    "push_to_talk": PUSH_TO_TALK,
    "open_microphone": OPEN_MICROPHONE,
    "heard_nothing": attrs.evolve(PUSH_TO_TALK, unacked="heard_nothing"),
    "tools": attrs.evolve(PUSH_TO_TALK, tools=(Tool("look_up"),), max_client_lead_ms=400),
    "paced": attrs.evolve(PUSH_TO_TALK, max_client_lead_ms=400),
}

WAITS_MS = st.sampled_from([0, 0.3, 1, 5, 20, 100, 400, 1_500])

Verbs = dict[str, tuple[st.SearchStrategy[Any], ...]]
"""A story's verb -> what its arguments are drawn from."""

TALK: Verbs = {
    "show": (),
    "say": (st.sampled_from([100, 400]),),
    "ask": (),
    "barge_in": (),
    "create": (),
    "ack": (st.sampled_from([0.0, 0.5, 1.0]),),
    "pause": (),
    "unpause": (),
}
TROUBLE: Verbs = {
    "drop_link": (st.sampled_from([0, 1, 2, 5]),),
    "resume": (st.sampled_from([-1, -1, 0]),),
    "take_over": (),
    "move_quietly": (),
    "kill_runtime": (),
    "stall_runtime": (st.sampled_from([0.2, 5.0, 60.0]),),
    "kill_server": (),
    "fail_append": (st.booleans(),),
    "slow_store": (st.sampled_from([0, 3, 40]),),
    "stall_socket": (),
    "unstall_socket": (),
    "step_clock_back": (st.sampled_from([0.5, 3_600]),),
}
OFTEN = ("ask", "barge_in", "resume")


MOTIFS = (
    ("barge_in", "ask", "barge_in"),
    ("barge_in", "drop_link", "resume"),
    ("barge_in", "take_over"),
    ("fail_append", "barge_in"),
    ("stall_socket", "barge_in", "unstall_socket"),
)
"""What has broken promises, and by chance seldom comes in this order."""


def in_order(*verbs: str) -> st.SearchStrategy[Program]:
    """A step of each, and a wait after it."""
    known = TALK | TROUBLE
    return st.tuples(*(st.tuples(st.just(verb), *known[verb], WAITS_MS) for verb in verbs)).map(list)


def programs() -> st.SearchStrategy[Program]:
    """A turn to begin with, then talk, trouble and motifs; twice as often what a story lives on, and a motif."""
    drawn = [*((verb,) for verb in (*TALK, *TROUBLE, *OFTEN)), *MOTIFS, *MOTIFS]
    parts = st.lists(st.one_of([in_order(*verbs) for verbs in drawn]), min_size=1, max_size=8)
    return st.builds(lambda begun, parts: [*begun, *chain.from_iterable(parts)], in_order("ask"), parts)


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
    store: str = "memory"
    call_at: int = -1
    """In the configuration with tools: before which unit the model calls."""


settings = st.builds(
    Setting,
    config=st.sampled_from([*CONFIGS, *["tools"] * (len(CONFIGS) - 2)]),  # half of them: most can go wrong there
    latency_ms=st.sampled_from([0, 30, 300]),
    units=st.sampled_from([2, 10, 30]),
    rtf=st.sampled_from([0.05, 0.5]),
    late_ms=st.sampled_from([-1, 0, 2, 30]),
    told=st.booleans(),
    call_at=st.sampled_from([-1, 0, 1, 4]),
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


async def play(setting: Setting, program: Program) -> Story:
    """Play a program; everything that is promised is checked on the way and at the end. The story as it ended."""
    if setting.store == "memory":
        return await _play_on(MemoryDatabase(), setting, program)
    with tempfile.TemporaryDirectory(prefix="duologue-story-") as folder:
        database = SqliteDatabase(Path(folder) / "log.sqlite3")
        try:
            return await _play_on(database, setting, program)
        finally:
            database.dispose()


async def _play_on(database: MemoryDatabase | SqliteDatabase, setting: Setting, program: Program) -> Story:
    scheduler: random.Random = trio._core._run._r  # type: ignore[attr-defined]
    scheduler.seed(setting.seed)
    model = {
        "answer_units": setting.units,
        "rtf": setting.rtf,
        "late_after_abort_ms": setting.late_ms,
        "transcript": "turn {segment} call=look_up" if setting.config == "tools" else "turn {segment}",
        "call_at_unit": setting.call_at,
    }
    database.tells_terms = setting.told
    latency_s = setting.latency_ms / 1000
    async with open_story(CONFIGS[setting.config], latency_s=latency_s, database=database, **model) as story:
        for step in program:
            await take_step(story, step)
    story.told = [(record.at_ns, record.event) for record in story.records()]
    return story


def printed(setting: Setting, program: Program) -> str:
    """A program as a test may hold it."""
    lines = "".join(f"        {step!r},\n" for step in program)
    return f"await play(\n    {setting!r},\n    [\n{lines}    ],\n)"
