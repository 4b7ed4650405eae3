"""Whole sessions, told as stories."""

from __future__ import annotations

import attrs
import pytest

from core.session import events as e
from tests.core.actors.stories import OPEN_MICROPHONE, PUSH_TO_TALK, open_story


async def test_a_question_is_answered() -> None:
    async with open_story() as story:
        story.ask()
        response_id = await story.answering()
        await story.until(lambda: story.client.ends[response_id])
        assert story.client.received_ms == {response_id: 2_000}


async def test_a_detected_turn_is_answered() -> None:
    async with open_story(OPEN_MICROPHONE) as story:
        story.ask()
        await story.answering()


async def test_a_barge_in_is_answered_at_once() -> None:
    async with open_story() as story:
        story.ask()
        response_id = await story.answering()
        await story.wait(300)
        story.barge_in()
        await story.wait(5)
        assert story.client.ends[response_id] == 1
        (ended,) = story.events(e.ResponseEnded)
        assert ended.status == "cancelled"


async def test_a_model_speaks_up_and_gives_way_by_itself() -> None:
    """It begins without being asked, and listens in the middle, with audio ahead of the listener: held, and sent."""
    paced = attrs.evolve(PUSH_TO_TALK, max_client_lead_ms=600)
    async with open_story(paced, speaks_up_ms=100, listen_at_unit=9, answer_units=20, rtf=0.1) as story:
        await story.answering()
        (started,) = story.events(e.ResponseStarted)
        assert started.trigger == "model"
        await story.until(lambda: story.events(e.ResponseEnded))
        (decided,) = story.events(e.OverlapDecided)
        assert (decided.action, decided.reason) == ("barge_in", "model_listen")
        made_ms = sum(event.audio_ms for event in story.events(e.Output))
        assert made_ms < 9 * 200, "what the pacer held was thrown away"
        assert [event.status for event in story.events(e.ResponseEnded)] == ["cancelled"]


async def test_a_fresh_client_gets_what_its_own_attachment_adds() -> None:
    async with open_story() as story:
        await story.wait(10)
        assert [frame.payload["type"] for frame in story.client.got.values()] == ["attached"]


async def test_a_cut_of_what_is_in_the_log_but_not_sent() -> None:
    """The socket takes nothing, the answer piles up behind it; after the cut none of it is written."""
    async with open_story(answer_units=40) as story:
        story.ask()
        response_id = await story.answering()
        story.stall_socket()
        await story.wait(2_000)
        story.barge_in()
        await story.wait(50)
        story.unstall_socket()
        await story.until(lambda: story.client.ends[response_id])
        assert story.client.announced
        assert story.client.received_ms[response_id] < 2_000


async def test_create_straight_after_a_cancel() -> None:
    async with open_story() as story:
        story.ask()
        first = await story.answering()
        story.barge_in()
        story.create()
        await story.until(lambda: story.client.ends[first])
        await story.answering()
        assert not story.events(e.Refused)


async def test_two_barge_ins_in_a_row() -> None:
    async with open_story() as story:
        story.ask()
        await story.answering()
        story.barge_in()
        story.barge_in()
        await story.wait(100)
        assert len(story.events(e.EpochBump)) == 1


async def test_an_answer_that_ended_in_the_log_is_cut_for_the_client() -> None:
    """R9: the log says completed, its end is still on its way."""
    async with open_story(answer_units=40, rtf=0.01) as story:
        story.ask()
        response_id = await story.answering()
        story.stall_socket()
        await story.until(lambda: story.events(e.ResponseEnded))
        assert story.client.ends[response_id] == 0
        story.barge_in()
        await story.wait(20)
        story.unstall_socket()
        await story.until(lambda: story.client.ends[response_id])
        last = max(story.client.got)
        assert [frame for frame in story.client.got.values() if frame.payload["type"] == "end"][-1].payload[
            "status"
        ] == "cancelled"
        assert last == story.session.outbox.head


# -- links that drop --------------------------------------------------------------------------------------------------


async def test_a_client_that_comes_back_gets_the_rest() -> None:
    async with open_story() as story:
        story.ask()
        response_id = await story.answering()
        story.drop_link()
        await story.wait(700)
        await story.resume()
        await story.until(lambda: story.client.ends[response_id])
        assert story.client.received_ms[response_id] == 2_000


async def test_what_was_on_its_way_comes_again() -> None:
    async with open_story(latency_s=0.15) as story:
        story.ask()
        await story.answering()
        await story.wait(170)
        story.drop_link()
        await story.resume()


async def test_what_was_on_its_way_comes_again_however_late_somebody_asks() -> None:
    """It was handed over longer ago than the replay window reaches; the attachment's own record must not let it go."""
    patient = attrs.evolve(PUSH_TO_TALK, disconnect_grace_ms=600_000)
    async with open_story(patient, latency_s=0.15, rtf=0.01) as story:
        story.ask()
        response_id = await story.answering()
        story.drop_link()
        await story.wait(100_000)
        await story.resume()
        await story.until(lambda: story.client.ends[response_id])
        assert story.client.received_ms[response_id] == 2_000


async def test_r2_every_gap_is_announced() -> None:
    """R2: a link drops with audio on its way, the answer is cut meanwhile, and the client comes back."""
    async with open_story(latency_s=0.3, rtf=0.1) as story:
        story.ask()
        response_id = await story.answering()
        story.barge_in()
        story.drop_link()
        await story.wait(100)
        await story.resume()
        await story.until(lambda: story.client.ends[response_id])
        assert story.client.announced


async def test_r5_the_answer_to_a_resume_is_lost_again_and_again() -> None:
    async with open_story() as story:
        story.ask()
        await story.answering()
        for _ in range(4):
            story.drop_link()
            await story.resume()
            assert story.client.link is not None
            story.client.link.drop()  # before anything was written
            await story.wait(20)
        assert story.client.token == "token-1"
        await story.resume()


async def test_r6_input_that_was_not_durable_is_sent_again() -> None:
    """R6: the server dies with input in its store's queue."""
    async with open_story() as story:
        story.slow_store(100)
        story.ask()
        await story.wait(30)
        story.kill_server()
        await story.wait(10)
        await story.start_server()
        await story.resume()
        await story.answering()
        assert len(story.events(e.Commit)) == 1


@pytest.mark.limit(wall_s=180)
async def test_r8_a_long_replay_is_no_backpressure() -> None:
    """R8: what a client asks to have again is not what it fails to take."""
    async with open_story(answer_units=300, rtf=0.01) as story:
        story.ask()
        response_id = await story.answering()
        first = story.client.number
        await story.wait(20_000)
        assert story.session.state.phase.value == "open"
        story.client.drop()
        story.client.number = first
        story.client.got = {n: frame for n, frame in story.client.got.items() if n <= first}
        story.client.received_ms[response_id] = story.client.got[first].start_ms + story.client.got[first].audio_ms
        story.client.ends.clear()
        await story.resume()
        await story.until(lambda: story.client.number > first + 100)
        assert not [ended for ended in story.events(e.ResponseEnded) if ended.status == "failed"]


async def test_a_client_that_reads_nothing_loses_its_answer_and_not_its_session() -> None:
    async with open_story(answer_units=40) as story:
        story.ask()
        await story.answering()
        story.stall_socket()
        for _ in range(600):
            story.say(100)
        await story.until(lambda: story.events(e.ResponseEnded))
        assert story.events(e.ResponseEnded)[0].reason == "output_backpressure"
        story.unstall_socket()


# -- stores that fail -------------------------------------------------------------------------------------------------


async def test_r1_an_append_that_fails_throws_the_memory_away() -> None:
    """R1: the cut is in memory, its append fails; nobody is told of it, and the client asks again."""
    async with open_story() as story:
        story.ask()
        response_id = await story.answering()
        story.fail_append()
        story.barge_in()
        await story.wait(200)
        assert story.client.ends[response_id] == 0
        assert story.client.link is not None
        assert story.client.link.close_code == 1012
        await story.resume()
        await story.until(lambda: story.client.ends[response_id])


async def test_r1_an_append_of_which_nobody_knows_is_settled_by_the_new_term() -> None:
    async with open_story() as story:
        story.ask()
        response_id = await story.answering()
        story.fail_append(written=True)
        story.barge_in()
        await story.wait(200)
        await story.resume()
        await story.until(lambda: story.client.ends[response_id])
        assert len([bump for bump in story.events(e.EpochBump) if bump.disposition == "cut"]) == 1


async def test_nothing_is_written_between_a_cut_and_its_durability() -> None:
    async with open_story(answer_units=40) as story:
        story.ask()
        await story.answering()
        await story.wait(50)
        number = story.client.number
        story.slow_store(500)
        story.barge_in()
        await story.wait(400)
        assert story.client.number == number
        await story.until(lambda: story.client.number > number)


async def test_what_finishes_while_the_server_drains_reaches_its_client() -> None:
    """An answer's end is decided before it is durable: the socket must not be closed in between."""
    async with open_story(settle=False) as story:
        story.ask()
        response_id = await story.answering()
        story.slow_store(300)
        await story.servers[0].supervisor.drain(60)
        assert story.client.ends[response_id] == 1
        assert story.events(e.Detached)


# -- runtimes and servers that die ------------------------------------------------------------------------------------


async def test_r3_a_lost_runtime_drains() -> None:
    """R3: what is durable of the answer is still delivered, then it ends as incomplete."""
    async with open_story(answer_units=40) as story:
        story.ask()
        response_id = await story.answering()
        story.stall_socket()
        await story.wait(1_000)
        produced_ms = story.session.state.responses[response_id].produced_ms
        story.kill_runtime()
        await story.wait(50)
        story.unstall_socket()
        await story.until(lambda: story.client.ends[response_id])
        assert story.client.received_ms[response_id] >= produced_ms
        (ended,) = story.events(e.ResponseEnded)
        assert (ended.status, ended.reason) == ("incomplete", "runtime_lost")
        await story.wait(500)
        story.ask()
        await story.answering()


async def test_r4_another_server_takes_a_session_from_a_live_one() -> None:
    async with open_story(answer_units=40) as story:
        story.ask()
        await story.answering()
        old = story.session
        await story.take_over()
        await story.wait(3_000)
        assert old.ended
        story.ask()
        await story.answering()
        assert story.session is not old


async def test_r7_what_was_lost_on_its_way_is_no_history() -> None:
    async with open_story(latency_s=0.5, rtf=0.1) as story:
        story.ask()
        await story.answering()
        await story.wait(100)
        story.drop_link()
        story.kill_server()
        await story.start_server()
        await story.resume()
        await story.wait(100)


async def test_r10_r11_a_barge_in_does_not_wait_for_the_store() -> None:
    """The cut is in force at once, whatever the store is doing: what comes later of the answer is dropped."""
    async with open_story(answer_units=40) as story:
        story.ask()
        await story.answering()
        story.slow_store(1_000)
        await story.wait(100)
        story.barge_in()
        await story.wait(1)
        assert story.session.state.epoch == 2
        await story.wait(3_000)


async def test_r12_a_session_that_nobody_comes_back_to_is_swept() -> None:
    async with open_story(settle=False) as story:
        story.ask()
        await story.answering()
        story.kill_server()
        server = await story.start_server()
        await story.wait(1_000)
        await server.supervisor.sweep()
        assert story.events(e.SessionClosed) == []
        await story.wait(400_000)
        await server.supervisor.sweep()
        assert len(story.events(e.SessionClosed)) == 1
        assert len(story.events(e.ResponseEnded)) == 1
        assert not await story.resume()
        assert story.client.over == "session_resume_expired"


async def test_r13_a_new_process_does_not_ask_for_everything() -> None:
    """R13: numbers that are not kept any more are answered with resync_required, and nothing is sent twice."""
    async with open_story(settle=False) as story:
        first = story.client.number
        for _ in range(3):
            story.ask()
            await story.answering()
            await story.wait(40_000)
        story.client.drop()
        story.client.number = first
        await story.wait(100)
        assert not await story.resume()
        assert story.client.over == "resync_required"


async def test_a_clock_that_steps_back_makes_nothing_wait() -> None:
    async with open_story() as story:
        story.step_clock_back(3_600)
        story.ask()
        await story.answering()
        story.drop_link()
        await story.wait(31_000)
        assert story.events(e.SessionClosed)[0].reason == "disconnect_grace_expired"


async def test_a_stalled_socket_is_given_up_when_another_takes_the_stream() -> None:
    async with open_story() as story:
        story.ask()
        await story.answering()
        story.stall_socket()
        old = story.client.link
        assert old is not None
        assert old.attachment is not None
        await story.wait(300)
        story.client.link = None
        await story.resume()
        await story.wait(1_500)
        assert old.attachment.closed.is_set()
