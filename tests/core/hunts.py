"""Short stories, each of which one or more mutants break. Without a mutant they pass. A hunt ends with an AssertionError
(mostly a BrokenPromise) that begins with the promise's name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs
import trio

from core.actors import pacer
from core.actors.housekeeping import EXPIRY_MS
from core.actors.tokens import ResumeRefused
from core.ports import runtime as rt
from core.ports.store import Owned, SessionRow
from core.session import commands as c
from core.session import effects as fx
from core.session import events as e
from store.memory import Fault, MemoryDatabase, MemoryStore
from tests.core.actors.busy import busy_for
from tests.core.actors.model_client import BrokenPromise, Link
from tests.core.actors.stories import PUSH_TO_TALK, Story, check_log, open_story
from tests.core.machine_hunts import MACHINE_HUNTS

Hunt = Callable[[], Awaitable[None]]


async def cut_behind_a_stalled_socket() -> None:
    async with open_story(answer_units=40) as story:
        story.ask()
        await story.answering()
        story.stall_socket()
        await story.wait(2_000)
        story.barge_in()
        await story.wait(50)
        story.unstall_socket()


async def cut_while_audio_is_read() -> None:
    """After a resume the audio comes from the store, slowly; the cut is durable before it is there."""

    async def slow_body(self: MemoryStore, session: str, digest: str) -> bytes:
        await trio.sleep(0.2)
        return self.database.body(session, digest)

    quick_body = MemoryStore.body
    MemoryStore.body = slow_body  # type: ignore[method-assign]
    try:
        async with open_story(answer_units=20, rtf=0.05) as story:
            story.ask()
            await story.answering()
            story.drop_link()
            await story.wait(1_000)
            await story.resume()
            await story.wait(100)
            story.barge_in()
            await story.wait(1_000)
    finally:
        MemoryStore.body = quick_body  # type: ignore[method-assign]


async def cut_that_is_lost() -> None:
    """R1: the cut is in memory, its append fails; what the sender wrote in between must not be beyond what was lost."""
    async with open_story(answer_units=40, rtf=0.1) as story:
        story.ask()
        await story.answering()
        story.stall_socket()
        await story.wait(300)
        story.say(100)
        await story.wait(20)
        story.servers[0].faults.append(Fault(before_s=0.5, fail_before=True))
        story.barge_in()
        await story.wait(20)
        story.unstall_socket()
        await story.wait(1_000)


async def slow_store() -> None:
    async with open_story() as story:
        story.slow_store(50)
        story.ask()
        await story.wait(1_000)


async def a_second_socket() -> None:
    async with open_story(answer_units=40) as story:
        story.ask()
        await story.answering()
        story.client.link = None
        await story.resume()
        await story.wait(3_000)


async def stolen_token() -> None:
    async with open_story() as story:
        old = story.client.token
        story.drop_link()
        await story.resume()
        await story.wait(200)
        story.say(100)
        await story.wait(50)
        try:
            await story.servers[0].supervisor.resume(story.client.session_id, old, story.client.number)
        except ResumeRefused:
            return
        raise BrokenPromise("fences", "a token that was replaced opens the session")


async def late_frame_of_an_old_socket() -> None:
    """The answer to a resume is lost; then a frame comes in that the client had sent before, over the old socket."""
    async with open_story(latency_s=0.05) as story:
        old = story.client.link
        assert old is not None
        assert old.attachment is not None
        story.drop_link()
        await story.resume()
        await story.wait(20)
        story.session.first_frame(old.attachment)
        story.drop_link()
        await story.wait(100)
        await story.resume()
        story.judge()


async def lost_resume_answers() -> None:
    async with open_story() as story:
        story.ask()
        await story.answering()
        for _ in range(3):
            story.drop_link()
            await story.resume()
            story.drop_link()
            await story.wait(100)
        await story.resume()
        story.judge()


async def two_owners() -> None:
    """The store tells nobody that a term was given out."""
    async with open_story(answer_units=40) as story:
        story.database.tells_terms = False
        story.ask()
        await story.answering()
        await story.take_over()
        await story.wait(3_000)


async def cut_before_another_server_takes_over() -> None:
    """The cut is durable, the client knows nothing of it, and what it killed is in the log."""
    async with open_story(answer_units=40, rtf=0.05) as story:
        story.ask()
        await story.answering()
        story.stall_socket()
        await story.wait(500)
        story.barge_in()
        await story.wait(100)
        story.kill_server()
        await story.start_server()
        await story.resume()
        await story.wait(3_000)


async def two_takers() -> None:
    """Two servers read the same session back at the same time; the first to take the term is the last to look."""
    async with open_story() as story:
        story.kill_server()
        first, second = await story.start_server(), await story.start_server()
        take_term = first.supervisor._take_term

        async def take_and_dawdle(session_id: str) -> Owned:
            owned = await take_term(session_id)
            await trio.sleep(0.3)
            return owned

        first.supervisor._take_term = take_and_dawdle  # type: ignore[method-assign]
        client = story.client
        refused: list[ResumeRefused] = []

        async def come_to_the_first() -> None:
            try:
                await first.supervisor.resume(client.session_id, client.token, client.number)
            except ResumeRefused as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_to_the_first)
            await trio.sleep(0.1)
            await second.supervisor.resume(client.session_id, client.token, client.number)
        if not refused:
            raise BrokenPromise("one-writer", "two servers go on with one session under one term")
        await story.resume()


async def token_that_was_replaced_meanwhile() -> None:
    """Somebody shows a token to another server; before that takes the term, the client has a newer one."""
    async with open_story() as story:
        other = await story.start_server()
        old, number = story.client.token, story.client.number
        take_term = other.supervisor._take_term

        async def dawdle_and_take(session_id: str) -> Owned:
            await trio.sleep(1)
            return await take_term(session_id)

        other.supervisor._take_term = dawdle_and_take  # type: ignore[method-assign]
        refused: list[ResumeRefused] = []

        async def come_with_the_old_one() -> None:
            try:
                await other.supervisor.resume(story.client.session_id, old, number)
            except ResumeRefused as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_with_the_old_one)
            await trio.sleep(0.1)
            story.drop_link()
            await story.resume(0)
            await story.wait(200)
            story.say(100)
        if not refused:
            raise BrokenPromise("fences", "a token that was replaced opens the session")
        other.supervisor._take_term = take_term  # type: ignore[method-assign]
        await story.resume()


async def swept_at_the_last_moment() -> None:
    async with open_story() as story:
        await story.wait(2_000)  # its server has said that it lives
        story.kill_server()
        keeper = (await story.start_server()).supervisor._housekeeper
        end = keeper.end

        async def end_too_late(row: SessionRow, reason: str) -> bool:
            await story.resume()
            return await end(row, reason)

        keeper.end = end_too_late
        await story.wait(PUSH_TO_TALK.disconnect_grace_ms + EXPIRY_MS + 3_000)
        if story.events(e.SessionClosed):
            raise BrokenPromise("exactly-once-stream", "a client's session was ended under it")


async def backlog_behind_a_stuck_socket(story: Story) -> Link:
    """An answer that has ended, and of which the client's link took the beginning only. The link."""
    story.database.tells_terms = False
    story.ask()
    await story.answering()
    story.stall_socket()
    await story.until(lambda: story.events(e.ResponseEnded))
    await story.wait(200)
    assert story.client.link is not None
    return story.client.link


async def old_owner_wakes() -> None:
    """The old owner is cut off from the store, with a backlog behind a socket that is stuck and moves again later."""
    async with open_story(answer_units=40, rtf=0.01) as story:
        old = await backlog_behind_a_stuck_socket(story)
        story.servers[0].cut_off = True
        await story.move_quietly()
        await story.wait(3_000)
        old.unstall()
        await story.wait(1_000)


async def old_owner_asks() -> None:
    """The old owner reaches the store, with a backlog behind a socket that is stuck and moves again later."""
    async with open_story(answer_units=40, rtf=0.01) as story:
        old = await backlog_behind_a_stuck_socket(story)
        await story.move_quietly()
        await story.wait(3_000)
        old.unstall()
        await story.wait(1_000)


async def two_owners_write() -> None:
    """The old owner writes slowly what is durable, in good faith; the new one must not write meanwhile."""
    async with open_story(answer_units=40, rtf=0.01) as story:
        story.database.tells_terms = False
        story.ask()
        link = story.client.link
        assert link is not None
        link.slow_s = 0.1
        await story.answering()
        await story.until(lambda: story.events(e.ResponseEnded))
        story.servers[0].cut_off = True
        await story.move_quietly()
        await story.wait(3_000)


async def audio_lost_on_its_way() -> None:
    """Unacked: of an answer that is cut, the server thinks that what it handed over was played; it never arrived."""
    async with open_story(latency_s=0.5, rtf=0.05) as story:
        story.ask()
        await story.answering()
        story.barge_in()
        story.drop_link()
        await story.wait(100)
        await story.resume()


async def cut_with_audio_on_its_way() -> None:
    async with open_story(latency_s=0.3, rtf=0.1) as story:
        story.ask()
        await story.answering()
        story.barge_in()
        story.drop_link()
        await story.wait(100)
        await story.resume()


async def an_old_number() -> None:
    async with open_story() as story:
        number = story.client.number
        for _ in range(3):
            story.ask()
            await story.answering()
            await story.wait(40_000)
        _forget_above(story, number)
        await story.resume()


async def input_sent_again() -> None:
    async with open_story(latency_s=0.05) as story:
        story.ask()
        await story.wait(20)
        story.drop_link()
        story.client.unconfirmed = list(story.client.sent)  # the confirmation was lost, too
        await story.wait(20)
        await story.resume()
        story.client.unconfirmed = list(story.client.sent)
        for known in tuple(story.client.sent):
            story.client._put_on_the_wire(known)
        await story.wait(200)
        for known in tuple(story.client.sent):
            story.client._put_on_the_wire(known)


async def first_frames() -> None:
    async with open_story() as story:
        await story.wait(10)
        if not story.client.got:
            raise BrokenPromise("exactly-once-stream", "a fresh client does not see its own attachment")


async def long_replay() -> None:
    async with open_story(answer_units=300, rtf=0.01) as story:
        story.ask()
        await story.answering()
        number = story.client.number
        await story.wait(20_000)
        _forget_above(story, number)
        await story.resume()
        await story.wait(2_000)
        if any(bump.reason == "output_backpressure" for bump in story.events(e.EpochBump)):
            raise BrokenPromise("bounded", "a client that takes what it asked for is found too slow")


async def flooded_runtime() -> None:
    """For a while its queue takes neither the word that a turn is closed, nor that a session is over."""
    told: list[rt.ToRuntime] = []
    async with open_story() as story:
        with busy_for(story, fx.CommitTurn, told):
            story.ask()
            await story.wait(100)
        await story.wait(2_000)
        if not story.events(e.InputTranscript):
            raise BrokenPromise("exactly-once-stream", "a turn that was committed was never heard")
        heard = [type(message) for message in told if isinstance(message, fx.CommitTurn | fx.Respond)]
        if heard != sorted(heard, key=lambda kind: kind is fx.Respond):
            raise BrokenPromise("exactly-once-stream", "the model is asked before it is told the turn")
    closed: list[rt.ToRuntime] = []
    async with open_story(settle=False) as story:
        with busy_for(story, fx.CloseSession, closed):
            story.client.post(c.Close())
            await story.wait(100)
        await story.wait(2_000)
        if not any(isinstance(message, fx.CloseSession) for message in closed):
            raise BrokenPromise("bounded", "an ear is left behind for good")


async def lane_that_does_not_pause() -> None:
    paced = attrs.evolve(PUSH_TO_TALK, max_client_lead_ms=200, max_lane_lead_ms=10**9)
    items_max, pacer.HELD_ITEMS_MAX = pacer.HELD_ITEMS_MAX, 20
    try:
        async with open_story(paced, answer_units=100, rtf=0.001) as story:
            story.ask()
            await story.wait(1_000)
            if not story.events(e.ResponseEnded):
                raise BrokenPromise("bounded", "any amount of output is held")
    finally:
        pacer.HELD_ITEMS_MAX = items_max


async def altered_records() -> None:
    """Somebody changes a stored record in a way that no effect and no frame shows."""
    async with open_story() as story:
        story.ask()
        await story.answering()
        story.barge_in()
        await story.wait(500)
        database = story.database
        assert isinstance(database, MemoryDatabase)
    batches = database._batches["duplex-1"]
    for place, batch in enumerate(batches):
        later = attrs.evolve(batch.rows[-1], at_ns=batch.rows[-1].at_ns + 1)
        batches[place] = attrs.evolve(batch, rows=(*batch.rows[:-1], later))
        with suppress(BrokenPromise):
            check_log(story)
            raise AssertionError(f"replay-is-live: nothing tells that batch {batch.batch_id} was altered")
        batches[place] = batch
    check_log(story)


def _forget_above(story: Story, number: int) -> None:
    """The client's process dies and comes back with what it had written down."""
    client = story.client
    client.drop()
    client.number = number
    client.got = {n: frame for n, frame in client.got.items() if n <= number}
    client.ends.clear()
    client.received_ms.clear()
    for frame in client.got.values():
        if frame.digest:
            client.received_ms[frame.payload["response_id"]] = frame.start_ms + frame.audio_ms
        if frame.payload["type"] == "end":
            client.ends[frame.payload["response_id"]] += 1


HUNTS: dict[str, Any] = {
    hunt.__name__: hunt
    for hunt in (
        *MACHINE_HUNTS,
        late_frame_of_an_old_socket,
        cut_behind_a_stalled_socket,
        cut_while_audio_is_read,
        cut_that_is_lost,
        slow_store,
        a_second_socket,
        stolen_token,
        lost_resume_answers,
        two_owners,
        cut_before_another_server_takes_over,
        two_takers,
        token_that_was_replaced_meanwhile,
        swept_at_the_last_moment,
        old_owner_wakes,
        old_owner_asks,
        two_owners_write,
        audio_lost_on_its_way,
        cut_with_audio_on_its_way,
        an_old_number,
        input_sent_again,
        first_frames,
        flooded_runtime,
        lane_that_does_not_pause,
        long_replay,
        altered_records,
    )
}
