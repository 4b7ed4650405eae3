"""Input encodings, against figures of ITU-T G.711's own tables (scaled to 16 bits)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.session.config import INPUT_ENCODINGS, AudioFormat
from gpu_runtime import pcm


@pytest.mark.parametrize(
    ("encoding", "code", "value"),
    [
        ("g711_ulaw", 0x00, -32_124),
        ("g711_ulaw", 0x80, 32_124),
        ("g711_ulaw", 0x7F, 0),
        ("g711_ulaw", 0xFF, 0),
        ("g711_ulaw", 0xEF, 132),
        ("g711_alaw", 0x2A, -32_256),
        ("g711_alaw", 0xAA, 32_256),
        ("g711_alaw", 0x55, -8),
        ("g711_alaw", 0xD5, 8),
        ("g711_alaw", 0x80, 5_504),
    ],
)
def test_companded_codes(encoding: str, code: int, value: int) -> None:
    assert pcm.decode(bytes([code]), AudioFormat(encoding, 8_000))[0] * 32_768 == value


@given(st.sampled_from(INPUT_ENCODINGS), st.binary(max_size=64))
def test_any_bytes_give_finite_samples_within_full_scale(encoding: str, audio: bytes) -> None:
    samples = pcm.decode(audio, AudioFormat(encoding, 16_000))
    assert samples.dtype == np.float32
    assert len(samples) == len(audio) // pcm.SAMPLE_BYTES[encoding]
    assert np.isfinite(samples).all()
    assert (np.abs(samples) <= 1).all()
