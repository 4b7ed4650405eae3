"""WAV files of every kind that turns up."""

from __future__ import annotations

import io
import os
import struct
import threading
import tracemalloc
import wave
from pathlib import Path

import numpy as np
import pytest

from adapters.command_line.audio_files import (
    PIECE_FRAMES,
    BadAudioFile,
    level,
    measured,
    open_wav,
    read_wav,
    recording,
    wav_pieces,
)
from adapters.command_line.talk_script import Microphone

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


def decoded(data: bytes) -> bytes:
    return b"".join(wav_pieces(lambda: io.BytesIO(data), "x.wav", RATE))


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(("tag", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
def test_every_sample_format(tag: int, bits: int, extensible: bool) -> None:
    samples = np.frombuffer(decoded(wav(tag, bits, encoded(tag, bits), extensible=extensible)), "<i2") / 32_768
    assert samples.shape == (RATE,)
    assert np.abs(samples - WAVE).max() < (0.02 if bits == 8 else 1e-4)


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
        decoded(data)


def test_a_file_that_is_cut_off_is_read_as_far_as_it_goes() -> None:
    assert len(decoded(wav(1, 16, encoded(1, 16))[:-1_001])) // 2 == RATE - 501


def test_where_speech_is() -> None:
    quiet, loud = np.zeros(RATE // 2, "<i2"), (WAVE * 20_000).astype("<i2")
    whole = np.concatenate([quiet, loud, quiet]).tobytes()
    for size in (len(whole), 2_000, 2):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert measured(pieces, RATE) == (2 * RATE, (500, 1_500)), "however it is cut into pieces"
    assert measured([quiet.tobytes()], RATE) == (RATE // 2, None)
    assert measured([], RATE) == (0, None)


@pytest.mark.parametrize("rate", [RATE, 24_000])
@pytest.mark.parametrize("frames", [PIECE_FRAMES - 1, PIECE_FRAMES, 2 * PIECE_FRAMES, 2 * PIECE_FRAMES + 7])
def test_a_file_of_several_pieces_is_read_without_a_seam(frames: int, rate: int, tmp_path: Path) -> None:
    tone = np.sin(np.arange(frames) * (2 * np.pi * 440 / RATE)) * 0.5
    (tmp_path / "x.wav").write_bytes(wav(1, 16, (tone * 32_767).astype("<i2").tobytes()))
    heard = np.frombuffer(read_wav(tmp_path / "x.wav", rate), "<i2") / 32_768
    assert open_wav(tmp_path / "x.wav", rate).samples == len(heard)
    assert abs(len(heard) - frames * rate / RATE) <= 1
    wanted = np.sin(np.arange(len(heard)) * (2 * np.pi * 440 / rate)) * 0.5
    inside = slice(200, -200)  # a filter's ends
    assert np.abs(heard - wanted)[inside].max() < 1e-3


def test_half_an_hour_takes_no_more_memory_than_a_minute(tmp_path: Path) -> None:
    """It was held in memory several times over: three hours took 0.8 GB."""
    path = tmp_path / "lecture.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        for _ in range(30):
            file.writeframesraw(bytes(60 * 24_000 * 2))
    tracemalloc.start()
    microphone = Microphone(24_000)
    said = microphone.say("lecture", open_wav(path, 24_000))
    while not microphone.is_silent:
        microphone.take(10_000, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert said.length_ms == microphone.clock_ms == 30 * 60_000
    assert peak < 4_000_000


def test_a_pipe_is_read_as_a_file_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.wav")
    data = wav(1, 16, encoded(1, 16))
    writer = threading.Thread(target=(tmp_path / "x.wav").write_bytes, args=(data,))
    writer.start()
    sound = open_wav(tmp_path / "x.wav", RATE)
    writer.join()
    assert sound.samples == RATE
    assert b"".join(sound.pieces()) == b"".join(sound.pieces()) == decoded(data)


def test_a_file_that_is_shorter_when_it_is_said_ends_there() -> None:
    lengths = iter([10_000, 4_000])
    microphone = Microphone(1_000)
    microphone.say("x", recording(lambda: iter([bytes(2 * next(lengths))]), 1_000))
    for _ in range(5):
        microphone.take(1_000, 0)
    assert microphone.is_silent


def test_the_meter_goes_from_nothing_to_full() -> None:
    assert level(b"") == level(bytes(100)) == 0
    assert level(np.full(100, 32_767, "<i2").tobytes()) == pytest.approx(1.0, abs=0.01)
    assert 0.4 < level(np.full(100, 1_036, "<i2").tobytes()) < 0.6


def test_a_recording_that_is_never_said_keeps_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    path.write_bytes(wav(1, 16, encoded(1, 16)))
    sound = open_wav(path, RATE)
    before = len(os.listdir("/proc/self/fd"))
    unsaid = sound.pieces()
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(b"".join(unsaid)) == 2 * RATE
