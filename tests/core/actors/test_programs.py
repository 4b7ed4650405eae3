"""Random stories: talk and trouble in any order over real actors, with a phase without faults at the end.

In memory dev plays 40 programs, ci 400, soak 20,000; on SQLite 10, 80, 2,000. A program is as repeatable as its seed: what
is printed of one that fails runs again, and fails again, as it is.
"""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import attrs
import hypothesis
import pytest
from hypothesis import given, note

from tests import virtual_time
from tests.core.actors import programs as told
from tests.core.actors.programs import TALK, TROUBLE, Program, Setting, play, printed, programs, settings
from tests.core.actors.stories import Story
from tests.core.mutants import MUTANTS
from tests.core.mutating import switch_on

PROFILE = hypothesis.settings.get_current_profile_name()
PROGRAMS = {"dev": 40, "ci": 400, "soak": 20_000}
ON_SQLITE = {"dev": 10, "ci": 80, "soak": 2_000}

PROMISED_VERBS = {"say", "barge_in", "drop_link", "resume", "take_over", "kill_runtime"}
PROMISED_FAULTS = {
    "runtime dies": "kill_runtime",
    "runtime stalls": "stall_runtime",
    "socket stalls": "stall_socket",
    "socket drops at any await": "drop_link",
    "store append fails": "fail_append",
    "store is slow": "slow_store",
    "server killed": "kill_server",
    "another takes over": "take_over",
    "clock steps back": "step_clock_back",
}

TROUBLED: tuple[tuple[Setting, Program], ...] = (
    (
        Setting(seed=11, latency_ms=30),
        [
            ("ask", 20),
            ("slow_store", 40, 5),
            ("barge_in", 0),
            ("stall_runtime", 0.2, 100),
            ("ask", 400),
            ("drop_link", 2, 100),
            ("resume", -1, 20),
            ("kill_runtime", 100),
            ("take_over", 400),
            ("fail_append", False, 1),
            ("say", 400, 100),
            ("resume", -1, 400),
        ],
    ),
    (
        Setting(config="open_microphone", seed=5, told=False),
        [("ask", 400), ("move_quietly", 5), ("kill_server", 0), ("take_over", 100), ("stall_runtime", 60.0, 1_500)],
    ),
)

LOST_CALLS: tuple[tuple[Setting, Program], ...] = (
    (
        Setting(config="tools", latency_ms=300, rtf=0.05, told=False, seed=7324, call_at=1),
        [
            ("ask", 100),
            ("drop_link", 1, 0),
            ("resume", -1, 100),
            ("barge_in", 0),
            ("ask", 400),
            ("barge_in", 0),
            ("kill_runtime", 0),
        ],
    ),
    (
        Setting(config="tools", latency_ms=300, units=2, rtf=0.05, told=False, seed=312),
        [
            ("ask", 100),
            ("ack", 1.0, 0),
            ("fail_append", True, 0),
            ("barge_in", 100),
            ("slow_store", 40, 20),
            ("kill_runtime", 400),
            ("take_over", 20),
            ("slow_store", 0, 100),
        ],
    ),
    (
        Setting(config="tools", latency_ms=300, units=2, rtf=0.05, late_ms=30, told=False, seed=2251),
        [
            ("ask", 0),
            ("kill_runtime", 0),
            ("ack", 0.5, 100),
            ("ask", 400),
            ("barge_in", 100),
            ("drop_link", 0, 0.3),
            ("resume", -1, 1),
            ("ack", 0.5, 100),
        ],
    ),
)
"""Programs that broke the promise "calls": a cut, and the call in flight that it had spared never came again. After two
cuts; after one whose append failed, though it was written; after a resume that only followed the cut."""


@pytest.mark.no_cover  # tracing makes it three times as long; the stories cover the same lines
@pytest.mark.limit(wall_s=900)
@hypothesis.settings(max_examples=PROGRAMS.get(PROFILE, 40), report_multiple_bugs=False)
@given(settings, programs())
async def test_every_promise_survives_trouble(setting: Setting, program: Program) -> None:
    note(printed(setting, program))
    await play(setting, program)


@pytest.mark.no_cover
@pytest.mark.limit(wall_s=900)
@hypothesis.settings(max_examples=ON_SQLITE.get(PROFILE, 10), report_multiple_bugs=False)
@given(settings, programs())
async def test_every_promise_survives_trouble_on_sqlite(setting: Setting, program: Program) -> None:
    setting = attrs.evolve(setting, store="sqlite")
    note(printed(setting, program))
    await play(setting, program)


def test_every_verb_and_every_fault_that_is_promised_is_drawn() -> None:
    verbs = {**TALK, **TROUBLE}
    assert PROMISED_VERBS | set(PROMISED_FAULTS.values()) <= set(verbs)
    assert all(callable(getattr(Story, verb)) for verb in verbs)
    seen: set[str] = set()

    @hypothesis.settings(max_examples=100, database=None, derandomize=True)
    @given(programs())
    def draw(program: Program) -> None:
        seen.update(verb for verb, *_ in program)

    draw()
    assert seen == set(verbs)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize(("setting", "program"), TROUBLED)
def test_a_seed_makes_the_same_story_again(store: str, setting: Setting, program: Program) -> None:
    """To the nanosecond and the last event, whichever store it is."""
    setting = attrs.evolve(setting, store=store)
    first, second = run(printed(setting, program)), run(printed(setting, program))
    assert len(first.told) > 20
    assert first.told == second.told
    assert first.client.got == second.client.got


@pytest.mark.parametrize("call_at", [-1, 0, 1])
@pytest.mark.parametrize("latency_ms", [30, 300])
def test_a_call_that_was_on_its_way_when_the_line_was_cut_is_no_secret_of_the_models(
    latency_ms: int, call_at: int
) -> None:
    """Handed over before the barge-in, so it was made; lost with its connection, so it has to come again."""
    setting = Setting(config="tools", latency_ms=latency_ms, units=2, rtf=0.05, told=False, call_at=call_at)
    run(printed(setting, [("ask", 100), ("barge_in", 0), ("take_over", 0)]))


@pytest.mark.parametrize(("setting", "program"), LOST_CALLS)
def test_a_call_that_a_cut_has_spared_comes_again_whatever_lost_it(setting: Setting, program: Program) -> None:
    run(printed(setting, program))


def test_another_seed_may_be_another_story() -> None:
    """The seed decides who goes first when several could: without waits between the verbs, that can be seen."""
    hurry: Program = [
        ("ask", 0),
        ("barge_in", 0),
        ("ask", 0),
        ("drop_link", 1, 0),
        ("resume", -1, 0),
        ("take_over", 0),
        ("ask", 0),
    ]
    stories = [run(printed(Setting(units=2, rtf=0.05, seed=seed), hurry)) for seed in range(12)]
    assert any(story.told != stories[0].told for story in stories)


@pytest.mark.mutant
@pytest.mark.no_cover
@pytest.mark.limit(wall_s=180)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("name", ["two_ends", "writes_before_durable"])
def test_what_is_printed_of_a_failing_program_fails_again(
    name: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant is planted, Hypothesis finds and shrinks a program that it breaks, and what is printed of that is run."""
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    notes: list[str] = []

    @hypothesis.settings(max_examples=30, database=None, derandomize=True, report_multiple_bugs=False, phases=PHASES)
    @given(settings, programs())
    def hunt(setting: Setting, program: Program) -> None:
        notes.append(printed(attrs.evolve(setting, store=store), program))
        run(notes[-1])

    with monkeypatch.context() as planted:
        switch_on(mutant, planted)
        with pytest.raises(BaseException) as found:  # noqa: PT011 - compared below
            hunt()
        promises = [broken(notes[-1]) for _ in range(2)]
    assert str(promises[0]).startswith(f"{mutant.promise}: ")
    assert promises[0] == promises[1]
    assert promises[0] in [str(leaf) for leaf in leaves(found.value)]
    run(notes[-1])  # without the mutant it ends well


PHASES = (hypothesis.Phase.generate,)
"""Shrinking takes long and changes nothing here: each attempt is such a program, too."""


def run(program: str) -> Story:
    """What was printed, pasted into a test."""
    source = f"async def pasted():\n    return {textwrap.indent(program, '    ').lstrip()}\n"
    ast.parse(source)
    made: dict[str, Any] = {}
    exec(source, vars(told), made)
    story = virtual_time.run(made["pasted"])
    assert isinstance(story, Story)
    return story


def broken(program: str) -> str:
    """The promise that it breaks."""
    with pytest.raises(BaseException) as found:  # noqa: PT011 - a group or a BrokenPromise
        run(program)
    return min(str(leaf) for leaf in leaves(found.value))


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
