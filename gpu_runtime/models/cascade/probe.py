"""Plays WAV files into the cascade without a server, and prints when each stage was done.

    python -m gpu_runtime.models.cascade.probe question.wav [more.wav ...] [--fast] [--save DIR] [--option key=value]

Times are ms after the last loud sample of the file was handed over. ``busy`` is what other processes took of the
machine meanwhile, in cores: figures from a busy machine mean little.
"""

from __future__ import annotations

import argparse
import os
import queue
import statistics
import threading
import time
import wave
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np

from core.ports.runtime import (
    CloseSession,
    CommitTurn,
    Feed,
    FromRuntime,
    HistoryTurn,
    LaneEnded,
    LaneFailed,
    OpenLane,
    OpenSession,
    Produced,
    Respond,
    SpeechEnded,
    ToRuntime,
)
from core.session.config import AudioFormat, TurnDetection
from gpu_runtime.models.cascade.model import load
from gpu_runtime.models.cascade.parts import SPEAKING_RATE
from gpu_runtime.plugin import Model

CHUNK_MS = 20
LEAD_IN_MS, TAIL_MS = 300, 1_500
LOUD = 327
"""Of 32767: 1 % of full scale."""

WAIT_S = 30.0
STAGES = ("detected", "endpoint", "transcript", "first_token", "clause", "audio", "emitted")


@attrs.frozen
class Question:
    """16-bit mono ``audio``; ``end_ms`` is the end of its last loud sample."""

    name: str
    audio: bytes
    rate: int
    end_ms: float

    @classmethod
    def read(cls, path: Path) -> Question:
        """Raises ValueError for anything but 16-bit mono, OSError, wave.Error."""
        with wave.open(str(path)) as file:
            if file.getnchannels() != 1 or file.getsampwidth() != 2:
                raise ValueError(f"{path} is not 16-bit mono")
            audio, rate = file.readframes(file.getnframes()), file.getframerate()
        loud = np.flatnonzero(np.abs(np.frombuffer(audio, "<i2").astype(np.int32)) > LOUD)
        samples = int(loud[-1]) + 1 if len(loud) else len(audio) // 2
        silence = bytes(rate * 2 // 1000)
        return cls(
            path.stem, silence * LEAD_IN_MS + audio + silence * TAIL_MS, rate, LEAD_IN_MS + samples * 1000 / rate
        )


@attrs.define
class Turn:
    """A question and its answer; ``times_ms`` by stage, after the end of speech. ``underruns``: how often a player that
    began at once ran dry."""

    text: str = ""
    answer: str = ""
    audio: bytes = b""
    times_ms: dict[str, float] = attrs.field(factory=dict)
    underruns: int = 0
    failure: str = ""
    busy: float = 0.0


class Probe:
    """Plays the session machine's part, at its simplest: every turn with words is answered."""

    def __init__(self) -> None:
        self._came: queue.Queue[tuple[int, FromRuntime]] = queue.Queue(maxsize=100_000)
        self._sending = threading.Lock()
        self._end_ns = 0

    def emit(self, message: FromRuntime) -> None:
        """The model's sink."""
        self._came.put((time.time_ns(), message))

    def ask(self, model: Model, question: Question, fast: bool) -> Turn:
        """Play a question into a new session, and wait for its answer."""
        session = question.name
        self._send(model, OpenSession(session, AudioFormat("pcm16", question.rate), TurnDetection()))
        self._send(model, OpenLane(session, 1, "", "", ()))
        before = _cpu_s()
        player = threading.Thread(target=self._play, args=(model, question, fast))
        player.start()
        turn = self._converse(model, session)
        player.join()
        turn.busy = _busy(before, _cpu_s())
        for stage, at in turn.times_ms.items():
            turn.times_ms[stage] = (at - self._end_ns) / 1e6
        self._send(model, CloseSession(session))
        return turn

    def _send(self, model: Model, message: ToRuntime) -> None:
        with self._sending:
            model.handle(message)

    def _play(self, model: Model, question: Question, fast: bool) -> None:
        size = question.rate * 2 * CHUNK_MS // 1000
        started_s, self._end_ns = time.monotonic(), 0
        for number, at in enumerate(range(0, len(question.audio), size)):
            sent_ms = (number + 1) * CHUNK_MS
            if not fast:
                time.sleep(max(0.0, started_s + sent_ms / 1000 - time.monotonic()))
            if not self._end_ns and sent_ms >= question.end_ms:
                self._end_ns = time.time_ns() - int((sent_ms - question.end_ms) * 1e6)
            chunk = question.audio[at : at + size]
            self._send(model, Feed(question.name, 1, number * CHUNK_MS, CHUNK_MS, chunk))

    def _converse(self, model: Model, session: str) -> Turn:
        turn, heard, played_until_ns = Turn(), "", 0
        while True:
            try:
                at_ns, message = self._came.get(timeout=WAIT_S)
            except queue.Empty:
                turn.failure = "no answer"
                return turn
            match message:
                case SpeechEnded() if message.text:
                    heard = f"{heard} {message.text}".strip()
                    turn.text, turn.answer, turn.audio = heard, "", b""
                    turn.times_ms = {"detected" if k == "last_speech" else k: v for k, v in message.timings}
                    item = f"item-{message.segment}"
                    commit = CommitTurn(session, item, message.start_ms, message.end_ms, message.segment)
                    self._send(model, commit)
                    history = (HistoryTurn("user", heard, item),)
                    self._send(model, Respond(session, 1, item, "", history, ("audio",), None))
                case Produced():
                    if not turn.audio:
                        turn.times_ms |= {**dict(message.timings), "emitted": at_ns}
                        played_until_ns = at_ns
                    elif at_ns > played_until_ns:
                        turn.underruns += 1
                        played_until_ns = at_ns
                    played_until_ns += len(message.audio) * 500_000_000 // SPEAKING_RATE
                    turn.answer += message.text
                    turn.audio += message.audio
                case LaneEnded():
                    return turn
                case LaneFailed():
                    turn.failure = f"{message.code}: {message.message}"
                    return turn
                case _:
                    pass


def _cpu_s() -> tuple[float, float, float]:
    """(wall, all processes' CPU, this process's CPU) in seconds; all processes' is 0 where the system does not tell."""
    mine = sum(os.times()[:2])
    try:
        fields = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return time.monotonic(), 0.0, mine
    # guest time is part of user time already
    busy = sum(int(ticks) for place, ticks in enumerate(fields[:8]) if place not in (3, 4))
    return time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), mine


def _busy(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    wall, everyone, mine = (late - early for early, late in zip(before, after, strict=True))
    return max(0.0, everyone - mine) / wall if everyone else 0.0


def report(turns: Sequence[Turn]) -> str:
    """Median and 90th percentile of each stage."""
    lines = []
    for stage in STAGES:
        times = sorted(turn.times_ms[stage] for turn in turns if stage in turn.times_ms)
        if times:
            p90 = times[min(len(times) - 1, int(0.9 * len(times)))]
            lines.append(f"{stage:12} median {statistics.median(times):6.0f}  p90 {p90:6.0f}  max {times[-1]:6.0f} ms")
    busy = statistics.median(turn.busy for turn in turns)
    underruns = sum(turn.underruns for turn in turns)
    return "\n".join([*lines, f"{len(turns)} turns, {underruns} underruns; others used {busy:.2f} cores (median)"])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m gpu_runtime.models.cascade.probe", description=__doc__)
    parser.add_argument("wavs", nargs="+", type=Path)
    parser.add_argument("--fast", action="store_true", help="feed as fast as the model takes it")
    parser.add_argument("--save", type=Path, help="write the answers as WAV files into this folder")
    parser.add_argument("--option", action="append", default=[], help="a model option, key=value")
    given = parser.parse_args(arguments)
    probe = Probe()
    started_s = time.monotonic()
    options = dict(option.partition("=")[::2] for option in given.option)
    model = load(options, probe.emit, lambda _what, _done: None)
    print(f"loaded in {time.monotonic() - started_s:.1f} s", flush=True)
    turns = []
    for path in given.wavs:
        question = Question.read(path)
        turn = probe.ask(model, question, given.fast)
        turns.append(turn)
        times = "  ".join(f"{stage} {turn.times_ms[stage]:.0f}" for stage in STAGES if stage in turn.times_ms)
        print(
            f"{path.stem}: {turn.text!r} -> {turn.answer!r} {turn.failure}\n    {times}  busy {turn.busy:.2f}",
            flush=True,
        )
        if given.save:
            _save(given.save / f"{path.stem}.wav", turn.audio)
    print(report(turns))
    model.close()
    return 0


def _save(path: Path, audio: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SPEAKING_RATE)
        file.writeframes(audio)


if __name__ == "__main__":
    raise SystemExit(main())
