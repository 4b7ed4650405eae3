"""Words that come too late, too early, or for somebody who is gone."""

from __future__ import annotations

import attrs
import pytest

from core.actors.mailbox import ITEMS_MAX
from core.actors.session import Session
from core.ports import runtime as rt
from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from store.memory import MemoryDatabase
from tests.core.actors.busy import busy_for
from tests.core.actors.model_client import Client
from tests.core.actors.stories import PUSH_TO_TALK, Story, open_story


async def test_a_frame_that_overtakes_the_answer_to_a_resume_does_not_spend_the_old_token() -> None:
    """The client's frame comes in before the answer with the new token could be handed over; then the link is gone."""
    async with open_story() as story:
        old = story.client.token
        story.drop_link()
        story.slow_store(500)
        await story.resume()
        await story.wait(20)
        link, session = story.client.link, story.session
        assert link is not None
        assert link.attachment is not None
        assert link.attachment.generation == session.state.attachment.generation == 2
        session.first_frame(link.attachment)
        await story.wait(1)
        story.drop_link()
        story.slow_store(0)
        await story.wait(1_000)
        assert story.client.token == old
        assert await story.resume()
        await story.until(lambda: story.client.token != old)


def words_of(story: Story, epoch: int, response_id: str) -> tuple[rt.FromRuntime, ...]:
    """What a lane may say: a unit, a call, its end."""
    session_id = story.session.session_id
    return (
        rt.Produced(session_id, epoch, response_id, 9, "speak", "late ", bytes(4_800), 24_000, (), ()),
        rt.ToolCalled(session_id, epoch, response_id, "call-1", "look_up", "{}"),
        rt.LaneEnded(session_id, epoch, response_id, "completed", 0, 0),
    )


@pytest.mark.parametrize(
    ("lane", "answer"),
    [("old", "old"), ("new", "old"), ("old", "new")],
    ids=["of the lane before", "of the answer before", "of an answer that was begun anew after a loss"],
)
async def test_late_words_throw_nothing_out_of_the_answer_that_is_being_made(lane: str, answer: str) -> None:
    """They come while it waits to be released; and the operator sees them counted."""
    paced = attrs.evolve(PUSH_TO_TALK, max_client_lead_ms=200)
    async with open_story(paced, answer_units=10, rtf=0.01) as story:
        stale: list[Session] = []
        story.session._ports.watch.stale_output = stale.append  # type: ignore[method-assign]
        story.ask()
        first = await story.answering()
        story.barge_in()
        await story.until(lambda: story.client.ends[first])
        story.ask()
        second = await story.answering()
        assert second != first
        counted = len(stale)
        epoch = 1 if lane == "old" else story.session.state.epoch
        for word in words_of(story, epoch, first if answer == "old" else second):
            story.session.take_message(word)
        await story.until(lambda: story.client.ends[second])
        assert story.client.received_ms[second] == 2_000
        assert len(stale) == counted + 2, "a unit and a call"


async def test_late_words_in_a_lane_that_is_silent_now_do_no_harm() -> None:
    async with open_story(rtf=0.01) as story:
        story.ask()
        response_id = await story.answering()
        await story.until(lambda: story.client.ends[response_id])
        position = story.session.state.position
        for word in words_of(story, story.session.state.epoch, response_id):
            story.session.take_message(word)
        await story.wait(50)
        assert not story.session.ended
        assert story.session.state.position == position


@pytest.mark.parametrize("place", [0, 1], ids=["a unit", "a call"])
async def test_output_that_a_full_mailbox_refuses_costs_its_answer_and_not_the_session(place: int) -> None:
    async with open_story(answer_units=40) as story:
        story.ask()
        response_id = await story.answering()
        session = story.session
        for _ in range(ITEMS_MAX):
            session.post(c.Touch())
        session.take_message(words_of(story, 1, response_id)[place])
        await story.until(lambda: story.client.ends[response_id])
        (ended,) = story.events(e.ResponseEnded)
        assert (ended.status, ended.reason) == ("failed", "mailbox_overflow")
        assert not session.ended
        story.ask()
        await story.answering()


async def test_a_word_that_a_full_mailbox_refuses_begins_the_session_anew() -> None:
    """Without a turn's end the session would be deaf."""
    async with open_story() as story:
        session, link = story.session, story.client.link
        for _ in range(ITEMS_MAX):
            session.post(c.Touch())
        session.take_message(rt.SpeechBegan(session.session_id, 1, 0))
        await story.until(lambda: session.ended)
        assert link is not None
        await story.until(lambda: link.close_code == 1012)
        assert await story.resume()


async def test_what_was_owed_to_a_lost_worker_is_not_told_to_the_next() -> None:
    """It begins from the history, which has all of that already."""
    async with open_story() as story:
        told: list[rt.ToRuntime] = []
        story.say(100)
        await story.wait(50)
        with busy_for(story, (fx.ClearTurn, fx.OpenLane), told):
            story.client.post(c.ClearInput())
            await story.wait(20)
            assert story.session.line.owes
            story.kill_runtime()
            await story.until(lambda: not story.session.state.runtime_up)
            assert not story.session.line.owes
            await story.until(lambda: story.session.state.runtime_up)
        await story.until(lambda: any(isinstance(message, fx.OpenLane) for message in told))
        assert not any(isinstance(message, fx.ClearTurn) for message in told)
        story.ask()
        await story.answering()


async def test_a_frame_whose_audio_was_erased_is_sent_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that comes back is owed the frames; an erasure in between is no fault of its session."""
    bodies: list[bytes | None] = []
    async with open_story(latency_s=0.2) as story:
        story.ask()
        await story.answering()
        await story.wait(150)
        story.drop_link()
        await story.until(lambda: story.events(e.ResponseEnded))
        database, client = story.database, story.client
        assert isinstance(database, MemoryDatabase)
        database._bodies.clear()
        monkeypatch.setattr(Client, "_audio", lambda self, frame, body: bodies.append(body))
        await story.resume()
        await story.until(lambda: client.number == story.session.outbox.head)
        assert bodies[0] is None
        assert story.servers[0].supervisor.statistics().failed == 0
