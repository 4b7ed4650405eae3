"""Client, session, worker, vLLM, speech: a spoken conversation, and what one session's trouble costs the others."""

from __future__ import annotations

import pytest
import trio

from adapters.client.session_config import cascade_session_config
from adapters.wire.schema import names
from core.session import events as e
from core.session.history import history
from core.session.ledger import heard_chars
from tests.speech.hearing import question
from tests.vllm.conftest import POISON, Judge, VllmServer
from tests.vllm.talks import LONG, PARIS, RESTART_S, Microphone, check_answers, client, figures, replayed, status, until

pytestmark = [pytest.mark.vllm, pytest.mark.realtime, pytest.mark.limit(wall_s=1_500)]


async def test_a_spoken_word_cuts_an_answer_off_and_the_next_knows_what_was_heard(
    vllm_server: VllmServer, judge: Judge
) -> None:
    """The answer is a long one, so that a quick machine is still at it. A slow one has said little that was not heard yet,
    and may take the spoken question for two turns, the second of which cuts the answer to the first."""
    async with client(vllm_server) as connected, trio.open_nursery() as nursery:
        stream = connected.events()
        microphone = Microphone(connected)
        nursery.start_soon(microphone.run)
        await connected.send_text(LONG)
        await until(stream, names.AUDIO_DELTA)
        microphone.say(question("kokoro_bf_emma", 0)[1])
        ended = [await status(stream)]
        while ended[-1] == "cancelled":
            ended.append(await status(stream))
        assert len(ended) >= 2, "nothing was cut off"
        assert ended[-1] == "completed"
        session = connected.session_id
        nursery.cancel_scope.cancel()
    replay = await replayed(vllm_server, session)
    bumps = [record.event for record in replay.records if isinstance(record.event, e.EpochBump)]
    assert {(bump.disposition, bump.reason) for bump in bumps} == {("cut", "turn_detected")}
    cuts = [replay.state.responses[bump.response_id or ""] for bump in bumps]
    assert 0 < heard_chars(cuts[0]) <= len(cuts[0].text)
    known = {turn.item_id: turn.text for turn in history(replay.state)}
    for cut in cuts:
        assert known.get(cut.item_id, "") == cut.text[: heard_chars(cut)], "the next answer knew more"
    assert all(check_answers(replay, judge)[-1:])


def test_it_is_measured_at_its_concurrency_before_anybody_is_let_in(vllm_server: VllmServer) -> None:
    words = vllm_server.words.read_text()
    stages = [words.index(f"vLLM, measured {done}%") for done in (17, 33, 67, 100)]
    assert stages == sorted(stages), (
        "two lanes, as many as it works on at once, then a round to warm up and one to measure"
    )
    assert stages[-1] < words.index("Ready.")


QUESTIONS = (
    PARIS,
    "Which river flows through it?",
    "And what is the capital of Italy?",
    "How many wheels does a bicycle have?",
    "What do bees make?",
)


async def test_a_conversation_that_outgrows_its_window_stays_right(vllm_server: VllmServer, judge: Judge) -> None:
    """Each prompt goes on in the lane of the one before, until the oldest turns are dropped: then it begins anew."""
    window = {"basic_window_high_tokens": 220, "basic_window_low_tokens": 170, "context_previous_max_tokens": 0}
    config = cascade_session_config() | {"output_modalities": ["text"], "extra_body": window}
    slid_before = figures(vllm_server)["duologue_lanes_slid_total"]
    async with client(vllm_server, config) as connected:
        stream = connected.events()
        for question in QUESTIONS:
            await connected.send_text(question)
            assert await status(stream) == "completed"
        session = connected.session_id
    replay = await replayed(vllm_server, session)
    slides = [record for record in replay.records if isinstance(record.event, e.WindowSlid)]
    assert slides
    assert len(check_answers(replay, judge)) == len(QUESTIONS)
    assert (await eventually(vllm_server, "duologue_lanes_slid_total", slid_before + 1))[
        "duologue_lanes_slid_total"
    ] <= (slid_before + len(slides))
    shown = await eventually(vllm_server, "duologue_first_token_seconds_count", len(QUESTIONS))
    for name in (
        "unit_seconds_count",
        "unit_queue_seconds_count",
        "units_done_total",
        "tokens_in_total",
        "tokens_out_total",
    ):
        assert shown[f"duologue_{name}"] >= len(QUESTIONS)
    for name in ("lanes_open", "kv_used_ratio", "prefix_tokens_asked_total"):
        assert shown[f"duologue_{name}"] > 0
    for name in ("lanes_parked", "unit_deadline_misses_total", "tokens_per_second", "prefix_tokens_cached_total"):
        assert shown[f"duologue_{name}"] >= 0


@pytest.mark.soak
async def test_a_second_conversation_finds_the_beginning_of_its_prompt_in_the_cache(
    vllm_server: VllmServer, judge: Judge
) -> None:
    before = figures(vllm_server)
    async with client(vllm_server) as first, client(vllm_server) as second:
        streams = [first.events(), second.events()]
        async with trio.open_nursery() as nursery:
            for connected, stream in zip((first, second), streams, strict=True):
                await connected.send_text(LONG if connected is first else PARIS)
                nursery.start_soon(status, stream)
        sessions = [first.session_id, second.session_id]
    for session in sessions:
        check_answers(await replayed(vllm_server, session), judge)
    after = await eventually(vllm_server, "duologue_units_done_total", before["duologue_units_done_total"] + 3)
    assert after["duologue_prefix_tokens_cached_total"] > 0
    assert after["duologue_tokens_out_total"] > before["duologue_tokens_out_total"]
    assert after["duologue_first_token_seconds_count"] > before["duologue_first_token_seconds_count"]
    assert 0 < after["duologue_kv_used_ratio"] < 1
    assert after["duologue_lanes_open"] >= 2


async def test_logits_that_are_no_numbers_fail_one_answer_and_the_other_session_talks_on(
    vllm_server: VllmServer, judge: Judge
) -> None:
    worker = vllm_server.tree()[0]
    async with client(vllm_server) as steady, client(vllm_server) as ill:
        stream, failing = steady.events(), ill.events()
        await steady.send_text(LONG)
        await until(stream, names.AUDIO_DELTA)
        await ill.send_text(f"What is{POISON}?")
        done = (await until(failing, names.RESPONSE_DONE)).payload["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("failed", "model_error")
        assert await status(stream) == "completed"
        await steady.send_text(PARIS)
        assert await status(stream) == "completed"
        session = steady.session_id
    assert vllm_server.tree()[0] == worker
    replay = await replayed(vllm_server, session)
    assert "Paris" in check_answers(replay, judge)[-1]
    assert not [record for record in replay.records if isinstance(record.event, e.RuntimeChanged)][1:]


async def test_a_turn_that_the_model_cannot_hold_ends_its_own_session_only(
    vllm_server: VllmServer, judge: Judge
) -> None:
    """By its bytes it would fit: each digit is a token."""
    worker = vllm_server.tree()[0]
    async with client(vllm_server) as steady:
        stream = steady.events()
        await steady.send_text(LONG)
        await until(stream, names.AUDIO_DELTA)
        async with client(vllm_server) as poisoned:
            ending = poisoned.events()
            await poisoned.send_text("7" * 4_000)
            closed = await until(ending, names.SESSION_CLOSED)
        assert closed.payload["reason"] == "lane_full"
        assert await status(stream) == "completed"
        session = steady.session_id
    assert vllm_server.tree()[0] == worker
    replay = await replayed(vllm_server, session)
    check_answers(replay, judge)
    assert not [record for record in replay.records if isinstance(record.event, e.RuntimeChanged)][1:]


async def eventually(server: VllmServer, name: str, at_least: float) -> dict[str, float]:
    """The figures, once one of them has come so far: they are a second old."""
    with trio.fail_after(RESTART_S):
        while (found := figures(server))[name] < at_least:
            await trio.sleep(0.5)
    return found
