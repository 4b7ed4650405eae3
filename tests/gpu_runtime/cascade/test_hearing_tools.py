"""The two clocks, the tape and the mel bands."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_runtime.models.cascade.clock import InputClock
from gpu_runtime.models.cascade.mel import BANDS, LogMel, mel_filters
from gpu_runtime.models.cascade.reading import KEEP_STRETCH_SAMPLES, SegmentReading
from gpu_runtime.models.cascade.segments import FRAME_MS, Frame
from gpu_runtime.models.cascade.tape import Tape
from gpu_runtime.models.cascade.whisper import begins_again


def tone(rate: int, hz: float, seconds: float) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


def test_the_clock_follows_the_client() -> None:
    clock = InputClock(5_000)
    clock.feed(0, 5_000, 100)
    assert clock.ms_at(800) == 5_050
    assert clock.sample_at(5_050) == 800
    assert clock.ms_at(99_999) == 5_100


def test_filled_silence_does_not_move_the_clock() -> None:
    clock = InputClock(0)
    clock.feed(0, 0, 100)
    assert clock.ms_at(16_000) == 100
    clock.feed(16_000, 100, 20)
    assert clock.ms_at(16_160) == 110
    assert clock.ms_at(800) == 50
    assert clock.sample_at(110) == 16_160


def test_rounding_is_no_jump_but_a_gap_is() -> None:
    clock = InputClock(0)
    clock.feed(0, 0, 41)
    clock.feed(667, 41, 42)
    assert clock.ms_at(667) == 41
    clock.feed(1_334, 1_000, 40)
    assert clock.ms_at(1_334) == 1_000
    assert clock.ms_at(1_300) == 81


def test_the_tape_cuts_and_forgets() -> None:
    tape = Tape(keep_s=0.1)
    for value in range(10):
        tape.append(np.full(320, value / 10, np.float32))
    assert tape.end == 3_200
    assert tape.start == 1_600
    cut = tape.cut(1_900, 2_000)
    assert len(cut) == 100
    assert cut[0] == pytest.approx(0.5, abs=1e-3)
    assert cut[-1] == pytest.approx(0.6, abs=1e-3)
    assert len(tape.cut(0, 1_000)) == 0
    assert len(tape.cut(3_000, 9_000)) == 200


def test_mel_bands_cover_the_spectrum_evenly() -> None:
    filters = mel_filters()
    assert filters.shape == (BANDS, 201)
    assert (filters.sum(axis=1) > 0).all()
    loudest = [int(LogMel()(tone(16_000, hz, 1.0), 200)[:, 50].argmax()) for hz in (200, 1_000, 4_000)]
    assert loudest == sorted(set(loudest))


def test_mel_of_a_short_sound_equals_that_of_the_sound_with_silence_behind_it() -> None:
    short = tone(16_000, 300, 0.3)
    padded = np.concatenate([short, np.zeros(16_000, np.float32)])
    assert np.allclose(LogMel()(short, 300), LogMel()(padded, 300), atol=1e-4)


@pytest.mark.parametrize(
    ("ids", "again"),
    [
        ([1, 2, 3, 4, 1, 2, 3, 4], True),
        ([1, 2, 3, 4, 5, 1, 2, 3], True),
        ([1, 2, 3, 1, 2], False),
        ([1, 2, 3, 4, 1, 2, 5, 6], False),
        ([], False),
    ],
)
def test_a_text_that_begins_again_is_noticed(ids: list[int], again: bool) -> None:
    assert begins_again(ids) is again


@pytest.mark.parametrize(("quiet_frames", "kept"), [(1, False), (2, False), (3, True)])
def test_a_long_stretch_is_kept_only_at_a_pause_that_is_no_part_of_a_word(quiet_frames: int, kept: bool) -> None:
    reading = SegmentReading(1, Frame(0.9, 512, 0, FRAME_MS), 0)
    frame = Frame(0.9, KEEP_STRETCH_SAMPLES, 0, FRAME_MS)
    reading.hear(frame, True, FRAME_MS)
    reading.hear(frame, False, FRAME_MS)
    reading.try_at(KEEP_STRETCH_SAMPLES)
    for _ in range(quiet_frames - 1):
        reading.hear(frame, False, FRAME_MS)
    reading.hear(frame, True, FRAME_MS)
    assert reading.resume() is kept
