"""How far ahead of its playback a client is sent an answer, as the client itself sees it."""

from __future__ import annotations

import attrs
import trio

from core.session import commands as c
from tests.core.actors.stories import PUSH_TO_TALK, Story, open_story

LEAD_MS, UNIT_MS = 400, 200
PACED = attrs.evolve(PUSH_TO_TALK, max_client_lead_ms=LEAD_MS)
LOOK_MS = 5


async def most_ahead_ms(story: Story, for_ms: int, queued_ms: float = 0.0) -> float:
    """Play what comes, one answer after the other, for so long: the most that ever lay unplayed. ``queued_ms`` lie there
    now."""
    came = sum(story.client.received_ms.values())
    most = queued_ms
    for _ in range(for_ms // LOOK_MS):
        await story.wait(LOOK_MS)
        total = sum(story.client.received_ms.values())
        queued_ms = max(0.0, queued_ms - LOOK_MS) + total - came
        most, came = max(most, queued_ms), total
    return most


async def test_a_quick_model_is_held_back() -> None:
    async with open_story(PACED, rtf=0.01) as story:
        story.ask()
        assert UNIT_MS < await most_ahead_ms(story, 3_000) <= LEAD_MS + UNIT_MS
        assert sum(story.client.received_ms.values()) == 2_000


async def test_a_lead_that_is_set_in_a_session_that_stands_counts_from_then() -> None:
    async with open_story(PUSH_TO_TALK, rtf=0.01) as story:
        story.client.post(c.UpdateConfig(PACED))
        await story.wait(1)
        story.ask()
        assert UNIT_MS < await most_ahead_ms(story, 3_000) <= LEAD_MS + UNIT_MS
        assert sum(story.client.received_ms.values()) == 2_000


async def test_no_lead_is_a_unit_at_a_time_and_not_silence() -> None:
    async with open_story(attrs.evolve(PACED, max_client_lead_ms=0), rtf=0.01) as story:
        story.ask()
        assert await most_ahead_ms(story, 3_000) == UNIT_MS
        assert sum(story.client.received_ms.values()) == 2_000


async def test_an_answer_behind_another_waits_for_it() -> None:
    """Asked for while the first still plays (after a function's result, say): the client has one queue, not two."""
    async with open_story(PACED, rtf=0.01) as story:
        story.ask()
        before = trio.current_time()
        first = await story.answering()
        await story.until(lambda: story.client.ends[first])
        played_ms = (trio.current_time() - before) * 1_000
        story.client.post(c.CreateResponse())
        most = await most_ahead_ms(story, 3_000, max(0.0, 2_000 - played_ms))
        assert most <= LEAD_MS + UNIT_MS
        assert len(story.client.received_ms) == 2
        assert set(story.client.received_ms.values()) == {2_000}


async def test_a_client_that_ran_dry_is_not_sent_all_that_it_missed_at_once() -> None:
    async with open_story(PACED, rtf=0.01, answer_units=40) as story:
        story.stall_runtime(0.2)
        story.ask()
        await story.answering()
        story.stall_socket()
        await story.wait(4_000)
        assert not await most_ahead_ms(story, 1_000)
        story.unstall_socket()
        assert await most_ahead_ms(story, 9_000) <= 2 * LEAD_MS + UNIT_MS, (
            "what the socket held, and the lead behind it"
        )
        assert sum(story.client.received_ms.values()) == 8_000


async def test_a_cut_or_a_truncate_empties_the_clients_queue() -> None:
    """What it threw away does not hold the next answer back."""
    async with open_story(PACED, rtf=0.01) as story:
        for end in (c.CancelOutput("barge_in", quiet=True), None):
            story.ask()
            response_id = await story.answering()
            await story.until(lambda rid=response_id: story.client.received_ms[rid] >= LEAD_MS)
            played_ms = story.client.played_ms(response_id)
            item_id = story.session.state.responses[response_id].item_id
            story.client.post(end or c.AckPlayback(played_ms, item_id=item_id, truncate=True))
            await story.wait(1)
            assert story.session.outbox.played_out_ns <= story.session.now_ns()
            await story.until(lambda rid=response_id: story.client.ends[rid])
