"""The streaming resampler: clean, quick to answer, and blind to how its input is cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.resampler import BLOCK_SAMPLES, PHASES_MAX, Resampler, _taps

HEARD_RATES = (8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000, 192_000)
PAIRS = [
    *((rate, 16_000) for rate in HEARD_RATES),
    *((24_000, rate) for rate in (8_000, 22_051, 44_100, 48_000)),
    (22_050, 24_000),
]
LOWER_RATE_SAMPLES_HELD_MAX = 19


def tone(rate: int, hz: float, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


def level_db(samples: np.ndarray) -> float:
    return float(10 * np.log10((samples.astype(np.float64) ** 2).mean()))


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_a_tone_keeps_its_pitch_level_and_place(rate_in: int, rate_out: int) -> None:
    made = Resampler(rate_in, rate_out).push(tone(rate_in, 1_000))
    wanted = tone(rate_out, 1_000)[: len(made)]
    assert level_db(wanted[200:]) - level_db((made - wanted)[200:] + 1e-12) > 75


@pytest.mark.parametrize(
    ("rate_in", "rate_out", "hz"),
    [(24_000, 8_000, 7_000), (24_000, 16_000, 10_500), (44_100, 16_000, 10_500), (48_000, 16_000, 10_500)],
)
def test_what_the_lower_rate_cannot_hold_is_gone(rate_in: int, rate_out: int, hz: float) -> None:
    made = Resampler(rate_in, rate_out).push(tone(rate_in, hz))
    assert level_db(made[200:]) - level_db(tone(rate_in, hz)) < -80


@pytest.mark.parametrize(("rate_in", "rate_out"), PAIRS)
def test_little_is_held_back_and_never_more(rate_in: int, rate_out: int) -> None:
    resampler = Resampler(rate_in, rate_out)
    given_, got = 0, 0
    for _ in range(50):
        got += len(resampler.push(np.zeros(rate_in // 50, np.float32)))
        given_ += rate_in // 50
        assert given_ / rate_in - got / rate_out <= LOWER_RATE_SAMPLES_HELD_MAX / min(rate_in, rate_out)


@given(st.sampled_from(PAIRS), st.lists(st.integers(0, 900), min_size=1, max_size=12))
def test_the_output_does_not_depend_on_the_chunks(rates: tuple[int, int], sizes: list[int]) -> None:
    samples = np.random.default_rng(1).normal(0, 1_000, sum(sizes)).astype(np.float32)
    whole = Resampler(*rates).push(samples)
    chunked, ends = Resampler(*rates), np.cumsum(sizes)
    parts = [chunked.push(samples[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_nor_on_the_blocks_of_a_long_chunk() -> None:
    samples = np.random.default_rng(1).normal(0, 1_000, 3 * BLOCK_SAMPLES).astype(np.float32)
    whole = Resampler(24_000, 16_000).push(samples)
    chunked = Resampler(24_000, 16_000)
    assert np.array_equal(np.concatenate([chunked.push(part) for part in np.split(samples, 64)]), whole)


def test_equal_rates_change_nothing() -> None:
    samples = tone(16_000, 440)
    assert Resampler(16_000, 16_000).push(samples) is samples


@pytest.mark.parametrize("rate", [8_001, 22_051, 47_999, 191_999])
def test_an_odd_rate_costs_no_more_taps_than_others(rate: int) -> None:
    """They are computed in the event loop, when a client asks for the rate."""
    assert PHASES_MAX <= 1_024
    for up, down in ((rate, 24_000), (16_000, rate)):
        assert len(_taps(up, down)[1]) <= PHASES_MAX + 1
    made = Resampler(24_000, rate).push(tone(24_000, 1_000))
    wanted = tone(rate, 1_000)[: len(made)]
    assert level_db(wanted[200:]) - level_db((made - wanted)[200:] + 1e-12) > 75
