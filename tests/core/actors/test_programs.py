"""Random stories: talk and trouble in any order over real actors, with a phase without faults at the end.

dev plays 40 programs, ci 400, soak 20,000.
"""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import given, note

from tests.core.actors.programs import Program, Setting, play, printed, programs, settings

PROGRAMS = {"dev": 40, "ci": 400, "soak": 20_000}


@pytest.mark.no_cover  # tracing makes it three times as long; the stories cover the same lines
@pytest.mark.limit(wall_s=900)
@hypothesis.settings(
    max_examples=PROGRAMS.get(hypothesis.settings.get_current_profile_name(), 40), report_multiple_bugs=False
)
@given(settings, programs())
async def test_every_promise_survives_trouble(setting: Setting, program: Program) -> None:
    note(printed(setting, program))
    await play(setting, program)
