"""Spoken conversations over the socket: real server, real models, the project's client and a listener's player."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from adapters.bench.own_server import ServerProcess
from adapters.client.credentials import ReconnectPolicy
from adapters.client.session_config import cascade_session_config
from adapters.client.trio_client import DuplexClient
from adapters.command_line.talk_session import Talk, TalkPlan
from adapters.replay.replaying import Replay, replay_session
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from adapters.wire.schema import names
from core.session import events as e
from core.session.history import history
from core.session.ledger import heard_chars
from store.opening import open_store
from tests.speech.hearing import QUESTIONS, RATE, STORY, backchannel, edits, question, sound, words

pytestmark = [pytest.mark.models, pytest.mark.realtime]

CHUNK_MS = 40
SILENCE_S = 1.2
WER_PERCENT_MAX = 5.0


class Quiet:
    def line(self, text: str) -> None: ...

    def levels(self, user: float, assistant: float, state: str) -> None: ...


def client(server: ServerProcess, **config: Any) -> DuplexClient:
    policy = ReconnectPolicy(attempts_max=200, initial_ms=100, delay_ms_max=500)
    return DuplexClient(server.url, model="cascade", config=cascade_session_config(**config), reconnect=policy)


async def talk(server: ServerProcess, plan: TalkPlan) -> tuple[dict[str, Any], Replay]:
    """Carry the plan out; the summary of what was heard, and the session's log folded again."""
    async with client(server) as connected:
        prebuffer_ms = int(connected.session_info["recommended_prebuffer_ms"])
        running = Talk(connected, plan, Quiet(), prebuffer_ms=prebuffer_ms)
        await running.run()
        session = connected.session_id
    assert session is not None
    return running.record.summary(), await replayed(server, session)


async def replayed(server: ServerProcess, session: str) -> Replay:
    async with open_store(server.store_url) as store:
        replay = await replay_session(store, session, make_projection, encode_caused)
    assert replay.exact, replay.mismatch
    return replay


def events(replay: Replay, kind: type) -> list[Any]:
    return [record.event for record in replay.records if isinstance(record.event, kind)]


@pytest.mark.parametrize("voice", ["kokoro_af_heart", "kokoro_bf_emma"])
async def test_questions_are_heard_right_over_the_socket(cascade_server: ServerProcess, voice: str) -> None:
    heard: list[str] = []
    async with client(cascade_server, turn_detection={"create_response": False}) as connected:
        for number in range(len(QUESTIONS)):
            _, pcm = question(voice, number)
            await connected.stream_pcm(pcm + bytes(int(SILENCE_S * RATE) * 2), realtime=False)
            event = await connected.wait_for(names.INPUT_TRANSCRIPT_DONE, timeout_s=60)
            heard.append(str(event.payload["transcript"]))
    wrong = sum(edits(words(asked), words(text)) for asked, text in zip(QUESTIONS, heard, strict=True))
    percent = 100 * wrong / sum(len(words(asked)) for asked in QUESTIONS)
    assert percent <= WER_PERCENT_MAX, (percent, heard)


async def test_a_question_faster_than_real_time_gets_the_same_answer(cascade_server: ServerProcess) -> None:
    answers = []
    for realtime in (True, False):
        async with client(cascade_server) as connected:
            _, pcm = question("kokoro_af_heart", 0)
            async with trio.open_nursery() as nursery:
                sound = pcm + bytes(int(SILENCE_S * RATE) * 2)
                nursery.start_soon(lambda: connected.stream_pcm(sound, chunk_ms=CHUNK_MS, realtime=realtime))  # noqa: B023
                done = await connected.wait_for(names.RESPONSE_DONE, timeout_s=60)
        answers.append(done.payload["response"]["output"][0]["content"][0]["transcript"])
    assert answers[0] == answers[1]
    assert "Paris" in answers[0]


async def test_a_remark_over_the_answer_does_not_cut_it(cascade_server: ServerProcess) -> None:
    plan = TalkPlan(
        question=sound(question("kokoro_af_heart", STORY)),
        interrupt=sound(backchannel("espeak_mhm")),
        chunk_ms=CHUNK_MS,
        after_s=1.5,
    )
    summary, replay = await talk(cascade_server, plan)
    decided = [(event.action, event.reason) for event in events(replay, e.OverlapDecided)]
    assert decided, "the remark was not heard over the answer"
    assert {action for action, _ in decided} <= {"listen", "drop"}, decided
    assert [answer["status"] for answer in summary["answers"]] == ["completed"]
    assert not events(replay, e.OutputInvalidated)


async def test_a_question_over_the_answer_cuts_it_and_is_answered(cascade_server: ServerProcess) -> None:
    plan = TalkPlan(
        question=sound(question("kokoro_af_heart", STORY)),
        interrupt=sound(question("kokoro_bf_emma", 0)),
        chunk_ms=CHUNK_MS,
        after_s=1.5,
    )
    summary, replay = await talk(cascade_server, plan)
    first, second = summary["answers"][:2]
    assert first["was_cut"], first
    assert "Paris" in second["transcript"], summary
    (cut,) = events(replay, e.EpochBump)[:1]
    assert (cut.disposition, cut.reason) == ("cut", "turn_detected")
    cut_answer = replay.state.responses[first["response_id"]]
    assert 0 < heard_chars(cut_answer) < len(cut_answer.text), "all of it was heard, or nothing"
    heard = cut_answer.text[: heard_chars(cut_answer)]
    assert heard.startswith(first["heard_text"].strip()), "the last ack, sent when the player fell silent, only adds"
    assert cut_answer.committed_ms == first["played_ms"]
    known = {turn.item_id: turn.text for turn in history(replay.state)}
    assert known[cut_answer.item_id] == heard, "the next answer knew more"


async def test_a_server_killed_in_mid_answer_is_resumed_and_knows_what_was_said(cascade_server: ServerProcess) -> None:
    async with client(cascade_server) as connected:
        stream = connected.events()
        _, pcm = question("kokoro_af_heart", STORY)
        await connected.stream_pcm(pcm + bytes(int(SILENCE_S * RATE) * 2), realtime=False)
        async for event in stream:
            if event.type == names.AUDIO_DELTA:
                break
        cascade_server.kill()
        cascade_server.start()
        await cascade_server.ready()
        statuses = [await _end(stream)]
        await connected.send_text("What is the capital of France?")
        statuses.append(await _end(stream))
        counts = connected.statistics()
        session = connected.session_id or ""
    assert statuses == ["incomplete", "completed"]
    assert (counts.lost_events, counts.stale_audio_deltas, counts.duplicate_events) == (0, 0, 0)
    assert counts.reconnects == 1
    replay = await replayed(cascade_server, session)
    texts = [turn.text or "" for turn in history(replay.state)]
    assert any("cat" in text for text in texts), texts
    assert any("Paris" in text for text in (response.text for response in replay.state.responses.values()))


async def _end(stream: Any) -> str:
    with trio.fail_after(90):
        async for event in stream:
            if event.type == names.RESPONSE_DONE:
                return str(event.payload["response"]["status"])
    raise AssertionError("the stream ended")
