"""A server that was stopped itself, or whose machine slept: what was due meanwhile is not held against those who could not
speak. ``stop_server`` jumps the clock: time passes in which nobody runs."""

from __future__ import annotations

import attrs
import pytest
import trio

from core.actors.alarm import LATE_S, REPRIEVE_S
from core.session import events as e
from core.session.config import SessionConfig
from tests.core.actors.stories import PUSH_TO_TALK, Story, open_story

IDLE_S, GRACE_S = 60, 30
HASTY = attrs.evolve(PUSH_TO_TALK, idle_timeout_ms=IDLE_S * 1_000, disconnect_grace_ms=GRACE_S * 1_000)

pytestmark = pytest.mark.limit(virtual_s=1_000)


def stop_server(for_s: float) -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    clock.jump(for_s)


def ended(story: Story) -> list[str]:
    return [event.reason for event in story.events(e.SessionClosed)]


async def silent_for(story: Story, silent_s: float) -> None:
    """A word, and then none."""
    story.say(100)
    await story.wait(silent_s * 1_000)


async def test_a_client_that_speaks_as_soon_as_it_is_heard_again_was_not_idle() -> None:
    async with open_story(HASTY) as story:
        await silent_for(story, IDLE_S - 10)
        stop_server(100)
        await story.wait(1_000)
        story.say(100)
        await story.wait(REPRIEVE_S * 1_000)
        assert ended(story) == []
        await story.wait((IDLE_S - REPRIEVE_S - 1) * 1_000)
        assert ended(story) == []
        await story.wait(2_000)
        assert ended(story) == ["idle_ttl_expired"], "in time, for it was not late again"


async def test_one_that_says_nothing_then_either_has_been_idle() -> None:
    """The deadline is put off once, and not at each look."""
    async with open_story(HASTY) as story:
        await silent_for(story, IDLE_S - 10)
        stop_server(100)
        for _ in range(4):
            await story.wait(REPRIEVE_S / 5 * 1_000)
            story.session._mailbox.nudge()
        assert ended(story) == []
        await story.wait(REPRIEVE_S / 5 * 1_000 + 100)
        assert ended(story) == ["idle_ttl_expired"]
        assert [event.kind for event in story.events(e.DeadlineFired)] == ["idle_ttl_expired"]


async def test_stopped_twice_it_is_put_off_once() -> None:
    async with open_story(HASTY) as story:
        await silent_for(story, IDLE_S - 10)
        stop_server(100)
        await story.wait(1_000)
        stop_server(100)
        await story.wait(1_000)
        assert ended(story) == ["idle_ttl_expired"]


async def test_a_client_that_could_not_come_back_meanwhile_still_can() -> None:
    async with open_story(HASTY) as story:
        story.say(100)
        await story.wait(1_000)
        story.drop_link()
        await story.wait((GRACE_S - 10) * 1_000)
        stop_server(100)
        await story.wait(1_000)
        assert await story.resume()
        await story.wait((REPRIEVE_S + GRACE_S) * 1_000)
        assert ended(story) == []


@pytest.mark.parametrize("config", [HASTY, attrs.evolve(HASTY, max_session_ms=20_000)])
async def test_a_deadline_that_comes_a_little_late_is_kept(config: SessionConfig) -> None:
    due_s = 20 if config.max_session_ms else IDLE_S
    async with open_story(config) as story:
        await silent_for(story, due_s - 1)
        stop_server(1 + LATE_S / 2)
        await story.wait(500)
        assert len(ended(story)) == 1
