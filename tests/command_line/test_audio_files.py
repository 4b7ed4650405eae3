"""WAV files of every kind that turns up."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from adapters.command_line.audio_files import BadAudioFile, decode_wav, level, read_wav, speech_span_ms

RATE = 16_000
WAVE = (np.sin(np.arange(RATE) * (2 * np.pi * 440 / RATE)) * 0.5).astype(np.float32)


def wav(tag: int, bits: int, body: bytes, *, channels: int = 1, rate: int = RATE, extensible: bool = False) -> bytes:
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, channels, rate, rate * frame, frame, bits)
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 0, tag) + bytes(14)
    chunks = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    chunks += b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def encoded(tag: int, bits: int) -> bytes:
    if tag == 3:
        return WAVE.astype(f"<f{bits // 8}").tobytes()
    if bits == 8:
        return (WAVE * 127 + 128).astype(np.uint8).tobytes()
    whole = (WAVE.astype(np.float64) * (2 ** (bits - 1) - 1)).astype("<i4")
    if bits == 24:
        return whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return whole.astype(f"<i{bits // 8}").tobytes()


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(("tag", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
def test_every_sample_format(tag: int, bits: int, extensible: bool) -> None:
    samples, rate = decode_wav(wav(tag, bits, encoded(tag, bits), extensible=extensible), "x.wav")
    assert rate == RATE
    assert samples.shape == (RATE, 1)
    assert np.abs(samples[:, 0] - WAVE).max() < (0.02 if bits == 8 else 1e-4)


def test_any_rate_and_any_channels(tmp_path: Path) -> None:
    stereo = np.stack([WAVE, np.zeros_like(WAVE)], axis=1).astype("<f4").tobytes()
    (tmp_path / "x.wav").write_bytes(wav(3, 32, stereo, channels=2))
    pcm = np.frombuffer(read_wav(tmp_path / "x.wav", 24_000), "<i2")
    assert abs(len(pcm) - 24_000) <= 1
    assert np.abs(pcm).max() == pytest.approx(0.25 * 32_768, rel=0.02)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF\0\0\0\0WAVE",
        wav(1, 16, b""),
        wav(1, 12, b"abcdef"),
        wav(7, 8, b"abcdef"),
        wav(1, 16, b"ab", channels=0),
        wav(3, 32, struct.pack("<f", float("nan"))),
        wav(1, 16, b"abcd")[:30],
    ],
)
def test_what_cannot_be_read_is_named(data: bytes) -> None:
    with pytest.raises(BadAudioFile, match=r"x\.wav"):
        decode_wav(data, "x.wav")


def test_a_file_that_is_cut_off_is_read_as_far_as_it_goes() -> None:
    samples, _ = decode_wav(wav(1, 16, encoded(1, 16))[:-1_001], "x.wav")
    assert len(samples) == RATE - 501


def test_where_speech_is() -> None:
    quiet, loud = np.zeros(RATE // 2, "<i2"), (WAVE * 20_000).astype("<i2")
    assert speech_span_ms(np.concatenate([quiet, loud, quiet]).tobytes(), RATE) == (500, 1_500)
    assert speech_span_ms(quiet.tobytes(), RATE) is None
    assert speech_span_ms(b"", RATE) is None


def test_the_meter_goes_from_nothing_to_full() -> None:
    assert level(b"") == level(bytes(100)) == 0
    assert level(np.full(100, 32_767, "<i2").tobytes()) == pytest.approx(1.0, abs=0.01)
    assert 0.4 < level(np.full(100, 1_036, "<i2").tobytes()) < 0.6
