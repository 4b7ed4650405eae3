"""Parts without weights: a detector that hears loudness, a recogniser that tells how much it was given, a language model
that says what it is told to, a voice of 50 ms a character."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from core.ports.runtime import Feed, FromRuntime, OpenSession
from core.session.config import AudioFormat, TurnDetection
from gpu_runtime.models.cascade.model import Cascade, Parts
from gpu_runtime.models.cascade.parts import (
    HEARING_RATE,
    SPEAKING_RATE,
    Cancel,
    ChatMessage,
    OnText,
    PartFailed,
    Reading,
    Samples,
    Speech,
    Usage,
)
from gpu_runtime.models.cascade.settings import Settings

Kind = TypeVar("Kind")
LOUD = 8_000
WAIT_S = 20.0


class LoudnessDetector:
    def probability(self, frame: Samples) -> float:
        return 0.9 if float(np.abs(frame).mean()) > 0.05 else 0.1

    def reset(self) -> None:
        pass


class MeasuringRecogniser:
    """Its text says how much audio it was given, and how much of it was loud: equal texts mean equal audio."""

    longest_s = 28.0

    def __init__(self) -> None:
        self.calls: list[float] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False

    def read(self, audio: Samples, cancel: Cancel) -> Reading:
        assert self.gate.wait(WAIT_S)
        self.calls.append(len(audio) / HEARING_RATE)
        if self.fails:
            raise PartFailed("recogniser_error", "no")
        loud = int(np.count_nonzero(np.abs(audio) > 0.05))
        return Reading(f"heard {len(audio)}/{loud}" if loud else "")


class ScriptedModel:
    """Answers each prompt with ``answers`` by its last message, else with ``default``; a word a token."""

    def __init__(self, default: str = "Fine, thank you. And how are you today?", parallel: int = 2) -> None:
        self.parallel = parallel
        self.context_tokens = 2_048
        self.few_shot = False
        self.default = default
        self.answers: dict[str, str] = {}
        self.prompts: list[tuple[ChatMessage, ...]] = []
        self.warmed: list[tuple[ChatMessage, ...]] = []
        self.gates: dict[int, threading.Event] = {}
        """Wait here before word n."""
        self.warm_gate: threading.Event | None = None
        self.warming = threading.Event()
        self.failure: PartFailed | None = None
        self.cancelled = 0

    def generate(self, messages: Sequence[ChatMessage], max_tokens: int, on_text: OnText, cancel: Cancel) -> Usage:
        self.prompts.append(tuple(messages))
        answer = self.answers.get(messages[-1].content, self.default)
        words = re.findall(r"\s*\S+", answer)
        for number, word in enumerate(words[:max_tokens]):
            self._wait(self.gates.get(number), cancel)
            if self.failure is not None:
                raise self.failure
            on_text(word)
        return Usage(10, min(len(words), max_tokens), len(words) > max_tokens)

    def warm(self, messages: Sequence[ChatMessage], cancel: Cancel) -> None:
        self.warmed.append(tuple(messages))
        self.warming.set()
        self._wait(self.warm_gate, cancel)

    def statistics(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _wait(self, gate: threading.Event | None, cancel: Cancel) -> None:
        until_s = time.monotonic() + WAIT_S
        while not cancel.raised and gate is not None and not gate.wait(0.002):
            assert time.monotonic() < until_s
        if cancel.raised:
            self.cancelled += 1
        cancel.check()


class SteadyVoice:
    name = "steady"
    per_character = SPEAKING_RATE // 20

    def __init__(self) -> None:
        self.said: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def speak(self, text: str, cancel: Cancel) -> Speech:
        until_s = time.monotonic() + WAIT_S
        while not self.gate.wait(0.002):
            cancel.check()
            assert time.monotonic() < until_s
        cancel.check()
        self.said.append(text)
        marks = tuple((match.end(), match.end() * self.per_character) for match in re.finditer(r"\S+", text))
        return Speech(np.full(len(text) * self.per_character, 1_000, np.int16), marks)


class Sink:
    """Collects what a model emits, and waits for it."""

    def __init__(self) -> None:
        self.said: list[FromRuntime] = []
        self._changed = threading.Condition()

    def __call__(self, message: FromRuntime) -> None:
        with self._changed:
            self.said.append(message)
            self._changed.notify_all()

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in list(self.said) if isinstance(message, kind)]

    def wait_for(self, kind: type[Kind], count: int = 1) -> list[Kind]:
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.of(kind)) >= count, WAIT_S)
        assert came, f"only {len(self.of(kind))} of {count} {kind.__name__}: {self.said}"
        return self.of(kind)


class Studio:
    """A Cascade of fakes, and one session on it."""

    def __init__(self, **options: object) -> None:
        self.recogniser = MeasuringRecogniser()
        self.model = ScriptedModel()
        self.voice = SteadyVoice()
        self.heard = Sink()
        parts = Parts(LoudnessDetector, self.recogniser, self.model, self.voice)
        self.cascade = Cascade(parts, Settings.parse(options), self.heard)
        self.sent_ms = 0

    def __enter__(self) -> Studio:
        return self

    def __exit__(self, *_: object) -> None:
        self.recogniser.gate.set()
        self.voice.gate.set()
        self.cascade.close()

    def open(
        self,
        session: str = "s",
        detection: TurnDetection | None = TurnDetection(),  # noqa: B008 - frozen
        rate: int = 16_000,
        input_ms: int = 0,
    ) -> None:
        self.cascade.handle(OpenSession(session, AudioFormat("pcm16", rate), detection, input_ms))
        self.sent_ms = input_ms
        self.rate = rate

    def feed(self, audio: bytes, session: str = "s", chunk_ms: int = 20) -> None:
        size = self.rate * 2 * chunk_ms // 1000
        for at in range(0, len(audio), size):
            part = audio[at : at + size]
            part_ms = len(part) * 1000 // (2 * self.rate)
            self.cascade.handle(Feed(session, 1, self.sent_ms, part_ms, part))
            self.sent_ms += part_ms

    def say(self, ms: int, session: str = "s", chunk_ms: int = 20) -> None:
        self.feed(np.full(self.rate * ms // 1000, LOUD, "<i2").tobytes(), session, chunk_ms)

    def hush(self, ms: int, session: str = "s", chunk_ms: int = 20) -> None:
        self.feed(bytes(self.rate * 2 * ms // 1000), session, chunk_ms)
