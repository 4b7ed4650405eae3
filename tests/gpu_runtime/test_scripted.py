"""The scripted model's machine alone: no host, no clock but the numbers that are handed in."""

from __future__ import annotations

from collections import defaultdict

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ports.runtime import (
    AbortLane,
    ClearTurn,
    CloseSession,
    CommitTurn,
    ConfigureSession,
    Feed,
    Heard,
    HistoryTurn,
    LaneEnded,
    OpenLane,
    OpenSession,
    PauseLane,
    Produced,
    Respond,
    ResumeLane,
    SpeechBegan,
    SpeechEnded,
    SpeechGoesOn,
    ToRuntime,
)
from core.session.config import AudioFormat, TurnDetection
from gpu_runtime.models.scripted import Identity, ScriptedMachine, identify, identify_all, machine
from gpu_runtime.models.scripted.identity import render
from gpu_runtime.plugin import ModelUnavailable
from gpu_runtime.stepped import Fault, Said
from tests.gpu_runtime.stories import silence, tone

MS = 1_000_000
VAD = TurnDetection(silence_duration_ms=200)


class Bench:
    """A machine and its clock."""

    def __init__(self, **settings: object) -> None:
        self.machine: ScriptedMachine = machine(**settings)
        self.now_ns = 0
        self.said: list[tuple[int, Said]] = []

    def tell(self, message: ToRuntime) -> None:
        self.said += [(self.now_ns, word) for word in self.machine.handle(message, self.now_ns)]

    def wait(self, ms: float) -> None:
        """Let time pass, stopping at each instant that the machine asks for."""
        end_ns = self.now_ns + round(ms * MS)
        steps = 0
        while (due_ns := self.machine.due_ns()) is not None and due_ns <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.said += [(self.now_ns, word) for word in self.machine.tick(self.now_ns)]
            steps += 1
            assert steps < 100_000, "the machine keeps asking for the same instant"
        self.now_ns = end_ns

    def words(self) -> list[Said]:
        return [word for _, word in self.said]

    def open(self, turn_detection: TurnDetection | None = None, audio_format: AudioFormat | None = None) -> None:
        self.tell(OpenSession("s", audio_format or AudioFormat(), turn_detection))
        self.tell(OpenLane("s", 1, "", "", ()))

    def ask(self, text: str, epoch: int = 1, response_id: str = "r") -> None:
        self.tell(Respond("s", epoch, response_id, "", (HistoryTurn("user", text, "i"),), ("audio",), None))


# --- identity -------------------------------------------------------------------------------------------------------

counts = st.integers(0, 0xFFFF)
identities = st.builds(Identity, counts, counts, counts)


@given(identities, st.integers(32, 4_800))
def test_audio_says_which_unit_it_is(identity: Identity, samples: int) -> None:
    audio = render(identity, samples, 24_000)
    assert len(audio) == 2 * samples
    assert identify(audio) == identity


@given(
    st.lists(st.tuples(identities, st.integers(64, 600), st.integers(0, 50)), min_size=1, max_size=6),
    st.integers(0, 15),
    st.integers(0, 15),
)
def test_a_recording_tells_its_units_in_order(
    pieces: list[tuple[Identity, int, int]], cut_front: int, cut_back: int
) -> None:
    """Also with silence between them, and when it begins and ends anywhere."""
    recording = b"".join(render(who, samples, 24_000) + bytes(2 * gap) for who, samples, gap in pieces)
    recording = recording[2 * cut_front : len(recording) - 2 * cut_back]
    wanted = [who for place, (who, _, _) in enumerate(pieces) if place == 0 or who != pieces[place - 1][0]]
    assert identify_all(recording) == wanted


def test_a_cut_tag_and_silence_are_no_unit() -> None:
    """124 samples end in twelve of a tag; four of silence make it as long as a whole one."""
    pieces = [(Identity(0, 0, 0), 64, 0), (Identity(0, 1, 1), 124, 4), (Identity(0, 0, 0), 64, 0)]
    recording = b"".join(render(who, samples, 24_000) + bytes(2 * gap) for who, samples, gap in pieces)
    assert identify_all(recording) == [who for who, _, _ in pieces]


def test_what_is_not_ours_is_not_identified() -> None:
    noise = np.random.default_rng(1).integers(-3_000, 3_000, 240_000).astype("<i2").tobytes()
    for audio in (b"", b"\0", silence(500), tone(500), noise):
        assert identify(audio) is None


def test_a_unit_sounds_like_a_soft_tone() -> None:
    samples = np.frombuffer(render(Identity(1, 4, 0), 4_800, 24_000), dtype="<i2")
    spectrum = np.abs(np.fft.rfft(samples))
    assert np.argmax(spectrum) * 24_000 / 4_800 == pytest.approx(440, abs=5)
    assert np.abs(samples).max() < 2_100


# --- answers --------------------------------------------------------------------------------------------------------


def test_units_come_at_the_real_time_factor() -> None:
    bench = Bench(unit_ms=100, rtf=0.5, first_audio_ms=30, answer_units=3)
    bench.open()
    bench.ask("hello")
    bench.wait(1_000)
    assert [at_ns // MS for at_ns, word in bench.said if isinstance(word, Produced)] == [30, 80, 130]


def test_a_pause_moves_the_rest_and_loses_nothing() -> None:
    bench = Bench(unit_ms=100, rtf=0.5, first_audio_ms=30, answer_units=4)
    bench.open()
    bench.ask("hello")
    bench.wait(90)
    bench.tell(PauseLane("s", 1))
    bench.wait(500)
    bench.tell(ResumeLane("s", 1))
    bench.wait(1_000)
    assert [at_ns // MS for at_ns, word in bench.said if isinstance(word, Produced)] == [30, 80, 590, 640]


def test_a_short_pause_between_two_units_costs_nothing() -> None:
    bench = Bench(unit_ms=100, rtf=0.5, first_audio_ms=30, answer_units=3)
    bench.open()
    bench.ask("hello")
    bench.wait(35)
    bench.tell(PauseLane("s", 1))
    bench.wait(10)
    bench.tell(ResumeLane("s", 1))
    bench.wait(1_000)
    assert [at_ns // MS for at_ns, word in bench.said if isinstance(word, Produced)] == [30, 80, 130]


def test_a_message_that_comes_twice_counts_once() -> None:
    bench = Bench(answer_units=2)
    bench.open()
    feed(bench, tone(100), 0)
    for _ in range(2):
        bench.tell(CommitTurn("s", "i", 0, 100))
        bench.tell(OpenLane("s", 1, "", "", ()))
        bench.ask("hello")
    bench.wait(5_000)
    assert [word.text for word in bench.words() if isinstance(word, Heard)] == ["turn 1", "turn 1"]
    assert [word.unit for word in bench.words() if isinstance(word, Produced)] == [0, 1]


def test_an_answer_may_begin_with_listening() -> None:
    bench = Bench(listen_units=2, answer_units=1)
    bench.open()
    bench.ask("hello")
    bench.wait(5_000)
    units = [word for word in bench.words() if isinstance(word, Produced)]
    assert [(unit.unit, unit.kind, unit.text) for unit in units] == [
        (0, "listen", ""),
        (1, "listen", ""),
        (2, "speak", "1 hello"),
    ]
    assert [mark.audio_end_ms for mark in units[2].marks] == [100, 200]


def test_timings_are_on_the_logs_clock() -> None:
    scripted = machine(wall_ns=5_000 * MS, first_audio_ms=10, answer_units=1)
    scripted.handle(OpenSession("s", AudioFormat(), None), 0)
    scripted.handle(OpenLane("s", 1, "", "", ()), 0)
    scripted.handle(Respond("s", 1, "r", "", (), ("audio",), None), 0)
    produced = scripted.tick(10 * MS)[0]
    assert isinstance(produced, Produced)
    assert dict(produced.timings)["audio"] == 5_010 * MS


def test_a_huge_answer_at_once_comes_in_portions() -> None:
    bench = Bench(rtf=0, answer_units=100)
    bench.open()
    bench.ask("hello")
    bench.now_ns = 50 * MS
    assert len(bench.machine.tick(bench.now_ns)) < 100
    bench.wait(0)
    assert isinstance(bench.words()[-1], LaneEnded)


@pytest.mark.parametrize(("setting", "fault"), [("die_at_unit", Fault.DIE), ("stall_at_unit", Fault.STALL)])
def test_faults_come_before_their_unit_and_only_in_their_epoch(setting: str, fault: Fault) -> None:
    bench = Bench(**{setting: 1, "fault_epoch": 2, "answer_units": 3})
    bench.open()
    bench.ask("hello")
    bench.wait(5_000)
    assert len([word for word in bench.words() if isinstance(word, Produced)]) == 3
    bench.tell(OpenLane("s", 2, "", "", ()))
    bench.ask("hello", epoch=2)
    bench.wait(5_000)
    assert bench.words()[-1] is fault
    assert isinstance(bench.words()[-2], Produced)


# --- the ear --------------------------------------------------------------------------------------------------------


def feed(bench: Bench, audio: bytes, start_ms: int, chunk_ms: int = 20, audio_format: AudioFormat | None = None) -> int:
    """In chunks; where the input clock stands then."""
    form = audio_format or AudioFormat()
    size = {"pcm16": 2, "pcm_f32le": 4}.get(form.encoding, 1)
    step = size * form.rate * chunk_ms // 1000
    for start in range(0, len(audio), step):
        chunk = audio[start : start + step]
        ms = len(chunk) * 1000 // (size * form.rate)
        bench.tell(Feed("s", 1, start_ms, ms, chunk))
        start_ms += ms
    return start_ms


def findings(bench: Bench) -> list[Said]:
    return [attrs.evolve(word, timings=()) if isinstance(word, SpeechEnded) else word for word in bench.words()]


@given(st.integers(1, 400))
def test_how_the_audio_is_cut_changes_nothing(chunk_ms: int) -> None:
    bench = Bench()
    bench.open(VAD)
    feed(bench, silence(100) + tone(300) + silence(140) + tone(60) + silence(300), 0, chunk_ms)
    assert findings(bench) == [
        SpeechBegan("s", 1, 100),
        SpeechGoesOn("s", 1, 100),
        SpeechGoesOn("s", 1, 200),
        SpeechGoesOn("s", 1, 300),
        SpeechGoesOn("s", 1, 460),
        SpeechEnded("s", 1, 100, 600, "turn 1"),
    ]


@pytest.mark.parametrize(
    "audio_format",
    [
        AudioFormat("pcm16", 8_000),
        AudioFormat("pcm16", 16_000),
        AudioFormat("pcm16", 44_100),
        AudioFormat("pcm16", 48_000),
        AudioFormat("pcm_f32le", 16_000),
        AudioFormat("g711_ulaw", 8_000),
        AudioFormat("g711_alaw", 8_000),
    ],
    ids=lambda form: f"{form.encoding}-{form.rate}",
)
def test_every_input_format_is_heard(audio_format: AudioFormat) -> None:
    rate = audio_format.rate
    if audio_format.encoding == "pcm16":
        audio = silence(100, rate) + tone(200, rate) + silence(300, rate)
    elif audio_format.encoding == "pcm_f32le":
        wave = np.frombuffer(silence(100, rate) + tone(200, rate) + silence(300, rate), dtype="<i2")
        audio = (wave / 32_768).astype("<f4").tobytes()
    else:
        quiet, loud = {"g711_ulaw": (b"\xff", b"\x9f\x1f"), "g711_alaw": (b"\xd5", b"\xb5\x35")}[audio_format.encoding]
        audio = quiet * 800 + loud * 800 + quiet * 2400
    bench = Bench()
    bench.open(VAD, audio_format)
    feed(bench, audio, 0, audio_format=audio_format)
    began, ended = (
        next(word for word in findings(bench) if isinstance(word, kind)) for kind in (SpeechBegan, SpeechEnded)
    )
    assert began.start_ms == pytest.approx(100, abs=20)
    assert ended.end_ms == pytest.approx(300, abs=20)


def test_audio_that_is_no_audio_does_no_harm() -> None:
    bench = Bench()
    bench.open(VAD, AudioFormat("pcm_f32le", 24_000))
    rubbish = np.array([np.nan, np.inf, -np.inf, 1e30] * 240, dtype="<f4").tobytes()
    bench.tell(Feed("s", 1, 0, 40, rubbish + b"\1\2\3"))
    bench.tell(Feed("s", 1, 40, 0, b""))
    bench.tell(Feed("s", 1, 40, 20, b"\1"))
    assert isinstance(bench.words()[0], SpeechBegan)


def test_the_idle_fill_counts_the_last_chunk_and_waits_for_late_ones() -> None:
    """A client that sends 400 ms at a time is not idle for the 400 ms until its next chunk is due."""
    bench = Bench(idle_fill_ms=100)
    bench.open(VAD)
    clock_ms = 0
    for _ in range(4):
        clock_ms = feed(bench, tone(400), clock_ms, chunk_ms=400)
        bench.wait(400 + 80)
    assert not any(isinstance(word, SpeechEnded) for word in bench.words())
    bench.wait(1_000)
    ended_at_ns, ended = bench.said[-1]
    assert isinstance(ended, SpeechEnded)
    assert ended.end_ms == 1_600
    assert ended_at_ns // MS == 3 * 480 + 400 + 200  # the hang-over is longer than the idle fill


def test_silence_that_was_sent_counts_towards_the_hang_over() -> None:
    bench = Bench(idle_fill_ms=10)
    bench.open(VAD)
    feed(bench, tone(100) + silence(160), 0)
    bench.wait(1_000)
    ended_at_ns, ended = bench.said[-1]
    assert isinstance(ended, SpeechEnded)
    assert ended_at_ns // MS == 20 + 40


def test_clearing_forgets_the_speech_that_was_under_way() -> None:
    bench = Bench()
    bench.open(VAD)
    clock_ms = feed(bench, tone(200), 0)
    bench.tell(ClearTurn("s"))
    clock_ms = feed(bench, silence(500), clock_ms)
    bench.wait(5_000)
    assert not any(isinstance(word, SpeechEnded) for word in bench.words())
    feed(bench, tone(40) + silence(300), clock_ms)
    assert findings(bench)[-1] == SpeechEnded("s", 2, 700, 740, "turn 2")


def test_detection_can_be_switched_off_and_on() -> None:
    bench = Bench()
    bench.open(VAD)
    clock_ms = feed(bench, tone(200), 0)
    bench.tell(ConfigureSession("s", AudioFormat(), None))
    before = len(bench.said)
    clock_ms = feed(bench, tone(100) + silence(500) + tone(100), clock_ms)
    bench.wait(5_000)
    assert len(bench.said) == before
    bench.tell(ConfigureSession("s", AudioFormat("pcm16", 8_000), VAD))
    feed(bench, tone(100, 8_000) + silence(300, 8_000), clock_ms, audio_format=AudioFormat("pcm16", 8_000))
    assert findings(bench)[-1] == SpeechEnded("s", 2, clock_ms, clock_ms + 100, "turn 2")


def test_a_transcript_may_take_its_time() -> None:
    bench = Bench(hear_ms=70, transcript="{segment} in {ms} ms")
    bench.open()
    feed(bench, tone(100), 0)
    bench.tell(CommitTurn("s", "i", 0, 100))
    bench.wait(1_000)
    assert bench.said == [(70 * MS, Heard("s", "i", "1 in 100 ms"))]


@pytest.mark.parametrize(
    "settings",
    [
        {"unit_ms": 0},
        {"unit_ms": "quick"},
        {"unit_ms": 1.5},
        {"rtf": -1},
        {"output_rate": 22_050, "unit_ms": 81},
        {"transcript": "{who}"},
        {"transcript": "{"},
        {"colour": "red"},
    ],
    ids=str,
)
def test_a_wrong_setting_is_named(settings: dict[str, object]) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        machine(**settings)
    assert any(name in str(caught.value) for name in settings)


def test_settings_may_come_as_text() -> None:
    assert machine(unit_ms="40", rtf="0.5").capabilities.unit_ms == 40


# --- whatever happens -----------------------------------------------------------------------------------------------

sessions = st.sampled_from(["a", "b"])
epochs = st.integers(1, 3)
asks = st.builds(
    Respond,
    sessions,
    epochs,
    st.uuids().map(str),
    st.just(""),
    st.just((HistoryTurn("user", None, "i"),)),
    st.just(("audio",)),
    st.sampled_from([None, 1, 5]),
)
lanes = st.builds(OpenLane, sessions, epochs, st.just(""), st.just(""), st.just(()))
hearing = st.one_of(
    st.builds(Feed, sessions, epochs, st.integers(0, 500), st.just(40), st.sampled_from([tone(40), silence(40)])),
    st.builds(ClearTurn, sessions),
    st.builds(CommitTurn, sessions, st.sampled_from(["i", "j"]), st.just(0), st.just(40), st.sampled_from([None, 1])),
)
steering = st.one_of(
    st.builds(AbortLane, sessions, epochs),
    st.builds(PauseLane, sessions, epochs),
    st.builds(ResumeLane, sessions, epochs),
)
sessions_come_and_go = st.builds(
    OpenSession, sessions, st.just(AudioFormat()), st.sampled_from([None, VAD])
) | st.builds(CloseSession, sessions)
rest = st.integers(1, 150)
# Mostly answers under way and what may become of them; so one draw decides the kind, by weight, and another what it is.
steps = st.lists(
    st.sampled_from(
        [rest] * 5 + [asks] * 4 + [steering] * 4 + [lanes] * 3 + [hearing] * 2 + [sessions_come_and_go]
    ).flatmap(lambda kind: kind),
    min_size=20,
    max_size=60,
)
PROLOGUE: list[ToRuntime | int] = [
    OpenSession("a", AudioFormat(), None),
    OpenLane("a", 1, "", "", ()),
    OpenSession("b", AudioFormat(), VAD),
    OpenLane("b", 1, "", "", ()),
]


class Model:
    """What may be said, by the contract alone: the floor of each session, and which lanes are paused."""

    def __init__(self) -> None:
        self.floor: dict[str, int] = {}
        self.lane: dict[str, int] = {}
        self.paused: dict[str, bool] = defaultdict(bool)
        self.units: dict[str, int] = defaultdict(int)
        self.ended: set[str] = set()

    def told(self, message: ToRuntime) -> None:
        name = message.session
        match message:
            case OpenSession():
                self.floor[name] = 0
                self.lane.pop(name, None)
            case CloseSession():
                self.floor.pop(name, None)
                self.lane.pop(name, None)
            case OpenLane(epoch=epoch) if self.lane.get(name) == epoch:
                pass
            case OpenLane(epoch=epoch) if name in self.floor and epoch >= self.floor[name]:
                self.floor[name] = self.lane[name] = epoch
                self.paused[name] = False
            case AbortLane(epoch=epoch) if name in self.floor:
                self.floor[name] = max(self.floor[name], epoch + 1)
                if self.lane.get(name, 0) < self.floor[name]:
                    self.lane.pop(name, None)
            case PauseLane(epoch=epoch) | ResumeLane(epoch=epoch) if self.lane.get(name) == epoch:
                self.paused[name] = isinstance(message, PauseLane)

    def heard(self, word: Said) -> None:
        assert not isinstance(word, Fault)
        assert word.session in self.floor  # type: ignore[union-attr]
        if isinstance(word, Produced):
            assert self.lane.get(word.session) == word.epoch
            assert not self.paused[word.session]
            assert word.unit == self.units[word.response_id]
            assert word.response_id not in self.ended
            assert (got := identify(word.audio)) is not None
            assert (got.epoch, got.unit) == (word.epoch, word.unit)
            self.units[word.response_id] += 1
        if isinstance(word, LaneEnded):
            assert self.lane.get(word.session) == word.epoch
            assert word.response_id not in self.ended
            self.ended.add(word.response_id)


def play(story: list[ToRuntime | int]) -> list[tuple[int, Said]]:
    """Each word is checked when it is said."""
    bench, model, checked = Bench(unit_ms=40, answer_units=8, first_audio_ms=5, hear_ms=20), Model(), 0
    for step in story:
        if isinstance(step, int):
            bench.wait(step)
        else:
            model.told(step)
            bench.tell(step)
        for _, word in bench.said[checked:]:
            model.heard(word)
        checked = len(bench.said)
    return bench.said


@given(steps)
def test_whatever_happens_the_contract_holds_and_the_same_again_is_the_same(story: list[ToRuntime | int]) -> None:
    assert play(PROLOGUE + story) == play(PROLOGUE + story)
