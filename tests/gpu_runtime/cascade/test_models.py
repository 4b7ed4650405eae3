"""The real parts: hearing, thinking, speaking. Times are told by the probe, not tested: machines differ."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from core.ports.runtime import (
    AbortLane,
    CloseSession,
    Feed,
    HistoryTurn,
    LaneEnded,
    LaneFailed,
    OpenLane,
    OpenSession,
    Produced,
    Respond,
    SpeechBegan,
    SpeechEnded,
)
from core.session.config import AudioFormat, TurnDetection
from gpu_runtime.models.cascade.model import Cascade, Parts, load_parts
from gpu_runtime.models.cascade.parts import Cancel
from gpu_runtime.models.cascade.probe import Probe, Question
from gpu_runtime.models.cascade.settings import Settings
from gpu_runtime.plugin import Emit
from gpu_runtime.resampler import Resampler
from tests.gpu_runtime.cascade.fakes import Sink
from tests.speech.hearing import QUESTIONS, edits, words

pytestmark = pytest.mark.models

DATA = Path(__file__).parents[2] / "data"
SHORT_ACKS = ("mm", "uh", "um", "yeah", "i see", "oh")
WAIT_S = 120.0


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    loaded = load_parts(Settings(), lambda _what, _done: None)
    yield loaded
    loaded.model.close()


class Live:
    """A cascade of the real parts."""

    def __init__(self, parts: Parts, emit: Emit | None = None, **options: object) -> None:
        self.heard = Sink()
        self.cascade = Cascade(parts, Settings.parse(options), emit or self.heard)

    def open(self, session: str) -> None:
        self.cascade.handle(OpenSession(session, AudioFormat("pcm16", 16_000), TurnDetection()))
        self.cascade.handle(OpenLane(session, 1, "", "", ()))

    def play(self, session: str, samples: np.ndarray, before_ms: int = 300, after_ms: int = 1_000) -> None:
        """Faster than real time, in chunks of 20 ms."""
        audio = np.concatenate([np.zeros(16 * before_ms), samples, np.zeros(16 * after_ms)])
        pcm = (np.clip(audio, -1, 1) * 32_767).astype("<i2").tobytes()
        for number, at in enumerate(range(0, len(pcm), 640)):
            self.cascade.handle(Feed(session, 1, number * 20, 20, pcm[at : at + 640]))

    def ask(self, session: str, text: str) -> None:
        self.cascade.handle(Respond(session, 1, session, "", (HistoryTurn("user", text, "u"),), ("audio",), None))

    def turns(self, session: str, timeout_s: float = WAIT_S) -> list[SpeechEnded]:
        """The turns of a session, once all that was begun has ended."""
        until_s = time.monotonic() + timeout_s
        while True:
            self._wait_until_heard(session)
            began = [said for said in self.heard.of(SpeechBegan) if said.session == session]
            ended = [said for said in self.heard.of(SpeechEnded) if said.session == session]
            if len(ended) == len(began):
                return ended
            assert time.monotonic() < until_s
            time.sleep(0.01)

    def answer(self, response: str) -> str:
        return "".join(unit.text for unit in self.heard.of(Produced) if unit.response_id == response)

    def wait_for_end(self, response: str) -> None:
        until_s = time.monotonic() + WAIT_S
        while not any(end.response_id == response for end in self.heard.of(LaneEnded)):
            assert self.heard.of(LaneFailed) == []
            assert time.monotonic() < until_s
            time.sleep(0.01)

    def _wait_until_heard(self, session: str) -> None:
        hearing = self.cascade._hearing
        until_s = time.monotonic() + WAIT_S
        while hearing.statistics().inbox_items or hearing._inboxes[session].ear.has_work:
            assert time.monotonic() < until_s
            time.sleep(0.005)
        time.sleep(0.05)

    def close(self) -> None:
        """But not the parts, which other tests use."""
        for session in list(self.cascade._sessions):
            self.cascade.handle(CloseSession(session))
        self.cascade._hearing.close()
        for stage in (self.cascade._reading, self.cascade._thinking, self.cascade._speaking):
            stage.close()


@pytest.fixture
def live(parts: Parts) -> Iterator[Live]:
    running = Live(parts, anticipate=False)
    yield running
    running.close()


def clip(folder: str, name: str) -> np.ndarray:
    question = Question.read(DATA / folder / f"{name}.wav")
    samples = np.frombuffer(question.audio, "<i2").astype(np.float32) / 32_768
    return Resampler(question.rate, 16_000).push(samples)


def test_spoken_questions_are_understood(live: Live) -> None:
    errors = total = 0
    for voice in ("kokoro_af_heart", "kokoro_bf_emma"):
        for number, question in enumerate(QUESTIONS):
            session = f"{voice}_{number}"
            live.open(session)
            live.play(session, clip("questions", session))
            turns = live.turns(session)
            assert len(turns) == 1, (session, turns)
            errors += edits(words(question), words(turns[0].text or ""))
            total += len(words(question))
    assert errors / total <= 0.05


def test_questions_are_answered_by_voice(parts: Parts) -> None:
    probe = Probe()
    running = Live(parts, probe.emit)
    turns = [
        probe.ask(running.cascade, Question.read(DATA / "questions" / f"kokoro_af_heart_{number}.wav"), fast)
        for number, fast in ((0, True), (0, False), (8, True))
    ]
    running.close()
    fast, live, opposite = turns
    assert [turn.failure for turn in turns] == [""] * 3
    assert fast.text == live.text == "What is the capital of France?"
    assert fast.answer == live.answer
    assert "Paris" in fast.answer
    assert "cold" in opposite.answer
    for turn in turns:
        seconds = len(turn.audio) / 48_000
        assert 0.2 < seconds / len(turn.answer.split()) < 1.0


def test_what_is_said_can_be_understood(parts: Parts) -> None:
    errors = total = 0
    for sentence in (
        "Birds fly south in the winter because they need warmer weather and more food.",
        "To make a cup of tea, boil some water, add a tea bag, and wait a few minutes.",
        "I am sorry, I did not catch that. Could you please say it again?",
        "Once upon a time, a small gray cat named Luna lived near the river.",
    ):
        speech = parts.voice.speak(sentence, Cancel())
        heard = parts.recogniser.read(
            Resampler(24_000, 16_000).push(speech.audio.astype(np.float32) / 32_768), Cancel()
        )
        errors += edits(words(sentence), words(heard.text))
        total += len(words(sentence))
    assert errors / total <= 0.12


def test_an_abort_is_the_last_word(live: Live) -> None:
    live.open("s")
    live.ask("s", "Can you tell me a short story about a cat?")
    live.heard.wait_for(Produced)
    live.cascade.handle(AbortLane("s", 1))
    said = len(live.heard.said)
    live.cascade.handle(OpenLane("s", 2, "", "", (HistoryTurn("user", "Can you tell me a story?", "u"),)))
    live.cascade.handle(
        Respond("s", 2, "next", "", (HistoryTurn("user", "What is the opposite of hot?", "u"),), ("audio",), 12)
    )
    live.wait_for_end("next")
    assert {unit.epoch for unit in live.heard.said[said:] if isinstance(unit, Produced)} == {2}


def test_two_sessions_are_answered_at_once(live: Live) -> None:
    for session in ("a", "b"):
        live.open(session)
    live.ask("a", "What is the capital of France?")
    live.ask("b", "What is the opposite of hot?")
    for session in ("a", "b"):
        live.wait_for_end(session)
    assert "Paris" in live.answer("a")
    assert "cold" in live.answer("b")


def noises() -> dict[str, np.ndarray]:
    random, seconds = np.random.default_rng(7), np.arange(48_000) / 16_000
    spectrum = np.fft.rfft(random.standard_normal(48_000)) / np.maximum(1, np.sqrt(np.arange(24_001)))
    pink = np.fft.irfft(spectrum)
    return {
        "white": random.standard_normal(48_000) * 0.1,
        "pink": pink / np.abs(pink).max() * 0.4,
        "tone": np.sin(2 * np.pi * 440 * seconds) * 0.3,
        "hum": np.sin(2 * np.pi * 50 * seconds) * 0.4,
        "clicks": (np.arange(48_000) % 4_000 < 20) * 0.7,
        "siren": np.sin(2 * np.pi * (500 * seconds + 60 * np.sin(2 * np.pi * 2 * seconds))) * 0.3,
        "keyed": np.sin(2 * np.pi * 300 * seconds) * (np.sin(2 * np.pi * 4 * seconds) > 0) * 0.3,
    }


@pytest.mark.parametrize("name", sorted(noises()))
def test_noise_is_no_turn(live: Live, name: str) -> None:
    live.open(name)
    live.play(name, noises()[name])
    assert [turn.text for turn in live.turns(name) if turn.text] == []


@pytest.mark.parametrize("name", sorted(path.stem for path in (DATA / "backchannels").glob("*.wav")))
def test_an_encouraging_sound_reads_as_one(live: Live, name: str) -> None:
    live.open(name)
    live.play(name, clip("backchannels", name))
    for turn in live.turns(name):
        assert turn.text is not None
        assert not turn.text or turn.text.lower().startswith(SHORT_ACKS), turn.text
        assert turn.end_ms - turn.start_ms <= 1_200
