"""The resampler, the two clocks and the tape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.models.cascade.clock import InputClock
from gpu_runtime.models.cascade.mel import BANDS, LogMel, mel_filters
from gpu_runtime.models.cascade.resample import Resampler
from gpu_runtime.models.cascade.tape import Tape

RATES = (8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000, 192_000)


def tone(rate: int, hz: float, seconds: float) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate", RATES)
def test_a_tone_keeps_its_pitch_level_and_place(rate: int) -> None:
    heard = Resampler(rate, 16_000).push(tone(rate, 440, 0.5))
    wanted = tone(16_000, 440, 0.5)[: len(heard)]
    assert len(heard) >= 8_000 - 20
    assert np.abs(heard - wanted)[100:-100].max() < 0.01


@pytest.mark.parametrize("rate", [24_000, 44_100, 48_000])
def test_what_is_above_the_band_is_gone(rate: int) -> None:
    heard = Resampler(rate, 16_000).push(tone(rate, 10_500, 0.5))
    assert np.abs(heard[200:-200]).max() < 0.02


@given(st.sampled_from(RATES), st.lists(st.integers(0, 900), min_size=1, max_size=12))
def test_the_output_does_not_depend_on_the_chunks(rate: int, sizes: list[int]) -> None:
    audio = np.random.default_rng(1).standard_normal(sum(sizes)).astype(np.float32)
    whole = Resampler(rate, 16_000).push(audio)
    chunked = Resampler(rate, 16_000)
    parts, at = [], 0
    for size in sizes:
        parts.append(chunked.push(audio[at : at + size]))
        at += size
    together = np.concatenate(parts)
    assert np.array_equal(together, whole)


@pytest.mark.parametrize("rate", RATES)
def test_the_delay_is_at_most_a_millisecond(rate: int) -> None:
    resampler = Resampler(rate, 16_000)
    given_, got = 0, 0
    for _ in range(50):
        got += len(resampler.push(np.zeros(rate // 50, np.float32)))
        given_ += rate // 50
        assert given_ / rate - got / 16_000 <= 0.00125


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
