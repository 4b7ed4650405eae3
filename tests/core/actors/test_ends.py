"""How a session's actor ends, and what becomes of whoever is attached then, or is about to be."""

from __future__ import annotations

import attrs
import pytest
import trio

from core.actors.tokens import ResumeRefused
from core.session import commands as c
from core.session import events as e
from tests.core.actors.model_client import Link
from tests.core.actors.stories import PUSH_TO_TALK, Story, open_story


def link_of(story: Story) -> Link:
    assert story.client.link is not None
    return story.client.link


async def test_a_client_that_takes_nothing_holds_a_closed_session_no_longer_than_some_seconds() -> None:
    async with open_story(answer_units=40, settle=False) as story:
        story.ask()
        await story.answering()
        story.stall_socket()
        await story.wait(500)
        story.client.post(c.Close())
        await story.wait(6_000)
        assert story.events(e.SessionClosed)
        assert not story.servers[0].supervisor.sessions, "it still has its place"


async def test_a_slow_client_is_told_that_its_session_is_closed() -> None:
    async with open_story(settle=False) as story:
        link = link_of(story)
        link.slow_s = 1.0
        story.client.post(c.Close())
        await story.until(lambda: link.close_code)
        assert link.close_code == 1000
        assert [frame.payload["type"] for frame in story.client.got.values()][-1] == e.TAGS[e.SessionClosed]


async def test_who_comes_while_a_session_ends_is_sent_back_at_once() -> None:
    """The mailbox has the session's end before the new socket."""
    async with open_story(settle=False) as story:
        socket = Link(story.client, story.servers[0])
        late = story.servers[0].supervisor.attachment(socket, story.client.number)
        story.session.post(c.Close())
        story.session.attach(late)
        with trio.fail_after(1):
            await late.closed.wait()
        assert (late.close_code, late.close_reason) == (1012, "resume")


async def test_what_a_session_took_in_is_in_its_log_when_its_actor_is_gone() -> None:
    """A drain: the process ends as soon as no actor is left."""
    async with open_story(settle=False) as story:
        session, server = story.session, story.servers[0]
        story.slow_store(300)
        story.say(200)
        await story.wait(10)
        server.supervisor.draining = True
        session.stop(1012, "server_restart")
        await story.until(lambda: not server.supervisor.sessions)
        assert len(story.events(e.Append)) == 2
        assert story.events(e.Detached), "from which its client's grace is counted"
        assert story.records()[-1].position == session.state.position


async def test_a_client_whose_number_is_let_go_before_it_is_attached_is_told_at_its_next_attempt() -> None:
    """What was lost on its way to it was kept when it asked, and is so no more when its turn comes."""
    forgetful = attrs.evolve(PUSH_TO_TALK, replay_window_ms=5_000)
    async with open_story(forgetful, latency_s=0.5, rtf=0.01, settle=False) as story:
        story.ask()
        await story.answering()
        story.drop_link()
        supervisor, client = story.servers[0].supervisor, story.client
        await story.wait(10_000)
        session = await supervisor.resume(client.session_id, client.token, client.number)
        assert session.outbox.first_number <= client.number + 1 < session.outbox.number
        story.kill_runtime()
        await story.wait(500)
        assert session.outbox.first_number > client.number + 1
        late = supervisor.attachment(Link(client, story.servers[0]), client.number)
        session.attach(late)
        with trio.fail_after(1):
            await late.closed.wait()
        assert (late.close_code, late.close_reason) == (1012, "resume")
        assert session.attachment is None
        with pytest.raises(ResumeRefused, match="not kept any more") as refused:
            await supervisor.resume(client.session_id, client.token, client.number)
        assert refused.value.code == "resync_required"
