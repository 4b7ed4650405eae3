"""What a talk says was heard is what the server's history says, at the end: the real server under a mock clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.command_line.talk_session import Talk, TalkPlan
from tests.client.fake_server import silence, tone
from tests.client.talking import Line, client_on, history_of
from tests.command_line.test_talk_outage import Lines
from tests.server.servers import open_test_server
from tests.speech.hearing import sound


@pytest.mark.limit(virtual_s=300)
@pytest.mark.parametrize("after_s", [None, 0.3, 0.5, 0.7])
async def test_the_summary_says_what_history_says(after_s: float | None) -> None:
    """A cut's own text lacks what the player played until it heard of the cut: the last ack tells the server."""
    interrupt = None if after_s is None else sound(("stop.wav", tone(1_500) + silence(500)))
    plan = TalkPlan(
        question=sound(("question.wav", tone(500) + silence(300))), interrupt=interrupt, after_s=after_s or 0.0
    )
    async with open_test_server() as server, client_on(Line(server)) as client:
        talk = Talk(client, plan, Lines(), prebuffer_ms=100)
        await talk.run()
        answers = talk.record.summary()["answers"]
        assert len(answers) == (1 if after_s is None else 2)
        for answer, kept in zip(answers, talk.record.answers, strict=True):
            assert answer["heard_text"] == await history_of(client, kept.state.item_id)
            assert kept.state.history_ms == answer["played_ms"]
        assert answers[0]["was_cut"] == (after_s is not None)
        assert answers[-1]["heard_text"] == answers[-1]["transcript"] != ""


async def test_an_answer_without_sound_is_an_answer(tmp_path: Path) -> None:
    plan = TalkPlan(question=sound(("question.wav", tone(500) + silence(300))), interrupt=None, after_s=0.0)
    lines = Lines()
    async with open_test_server() as server, client_on(Line(server)) as client:
        await client.update_session({"output_modalities": ["text"]})
        talk = Talk(client, plan, lines, prebuffer_ms=100)
        talk.record.keep(tmp_path)
        await talk.run()
        (answer,) = talk.record.summary()["answers"]
        assert (answer["played_ms"], answer["latency_ms"], answer["was_cut"]) == (0, None, False)
        assert "turn 1" in answer["transcript"]
        assert "-- answer 1 has no sound" in lines.lines
        assert tmp_path / "answer_1.wav" in talk.record.save(tmp_path)
