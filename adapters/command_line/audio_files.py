"""WAV files in: any rate, any number of channels, the sample formats that are in use -> pcm16 mono."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import soxr

FORMAT_PCM = 1
FORMAT_FLOAT = 3
FORMAT_EXTENSIBLE = 0xFFFE
FILE_BYTES_MAX = 512 * 1024 * 1024
SPEECH_FRAME_MS = 20
SPEECH_RMS = 0.01
"""A frame louder than this, relative to full scale, counts as speech."""


class BadAudioFile(ValueError):
    """The file is no WAV that can be read; the text says why."""


def read_wav(path: Path, rate: int) -> bytes:
    """The file as pcm16 mono at ``rate`` Hz. Raises BadAudioFile, OSError."""
    if path.stat().st_size > FILE_BYTES_MAX:
        raise BadAudioFile(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    samples, file_rate = decode_wav(path.read_bytes(), str(path))
    mono = samples.mean(axis=1)
    if file_rate != rate:
        mono = soxr.resample(mono, file_rate, rate, quality="HQ")
    pcm: bytes = np.clip(np.rint(mono * 32_768.0), -32_768, 32_767).astype("<i2").tobytes()
    return pcm


def decode_wav(data: bytes, name: str) -> tuple[np.ndarray[Any, np.dtype[np.float32]], int]:
    """A WAV file's bytes -> (float32 samples in [-1, 1], shape [frames, channels]; rate in Hz). Raises BadAudioFile."""
    if not data:
        raise BadAudioFile(f"{name} is empty")
    if len(data) < 12 or data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise BadAudioFile(f"{name} is not a WAV file; convert it first: ffmpeg -i {name} question.wav")
    form: tuple[int, int, int, int] | None = None
    at = 12
    while at + 8 <= len(data):
        kind, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        body = data[at + 8 : at + 8 + size]
        if kind == b"fmt ":
            form = _read_format(body, name)
        elif kind == b"data":
            if form is None:
                raise BadAudioFile(f"{name} has audio before its format")
            return _samples(body, form, name), form[2]
        at += 8 + size + size % 2
    raise BadAudioFile(f"{name} has no audio in it")


def _read_format(body: bytes, name: str) -> tuple[int, int, int, int]:
    """(format tag, channels, rate in Hz, bits a sample)."""
    if len(body) < 16:
        raise BadAudioFile(f"{name} has a broken format header")
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if tag == FORMAT_EXTENSIBLE and len(body) >= 26:
        tag = struct.unpack_from("<H", body, 24)[0]
    if channels < 1 or not 1_000 <= rate <= 768_000:
        raise BadAudioFile(f"{name} claims {channels} channels at {rate} Hz")
    return tag, channels, rate, bits


def _samples(body: bytes, form: tuple[int, int, int, int], name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    tag, channels, _, bits = form
    frame = channels * bits // 8
    body = body[: len(body) // frame * frame] if frame else body
    if not body:
        raise BadAudioFile(f"{name} has no audio in it")
    if (tag, bits) in ((FORMAT_FLOAT, 32), (FORMAT_FLOAT, 64)):
        flat = np.frombuffer(body, f"<f{bits // 8}").astype(np.float32)
        if not np.isfinite(flat).all():
            raise BadAudioFile(f"{name} has samples that are not numbers")
    elif tag == FORMAT_PCM and bits == 8:
        flat = (np.frombuffer(body, np.uint8).astype(np.float32) - 128.0) / 128.0
    elif tag == FORMAT_PCM and bits == 24:
        parts = np.frombuffer(body, np.uint8).reshape(-1, 3).astype(np.int32)
        flat = (((parts[:, 0] << 8) | (parts[:, 1] << 16) | (parts[:, 2] << 24)) / 2.0**31).astype(np.float32)
    elif tag == FORMAT_PCM and bits in (16, 32):
        flat = (np.frombuffer(body, f"<i{bits // 8}") / 2.0 ** (bits - 1)).astype(np.float32)
    else:
        raise BadAudioFile(
            f"{name} has samples of a kind that is not read here (format {tag}, {bits} bits); convert them first: ffmpeg -i"
            f" {name} -c:a pcm_s16le question.wav"
        )
    return flat.reshape(-1, channels)


def speech_span_ms(pcm: bytes, rate: int) -> tuple[int, int] | None:
    """Where speech begins and ends in pcm16: the first and the last loud frame, in ms; None when all is quiet."""
    frame = SPEECH_FRAME_MS * rate // 1_000
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32_768.0
    count = len(samples) // frame
    if not count:
        return None
    rms = np.sqrt((samples[: count * frame].reshape(count, frame) ** 2).mean(axis=1))
    loud = np.flatnonzero(rms > SPEECH_RMS)
    if not len(loud):
        return None
    return int(loud[0]) * SPEECH_FRAME_MS, (int(loud[-1]) + 1) * SPEECH_FRAME_MS


def level(pcm: bytes) -> float:
    """Loudness of pcm16 for a meter, 0 to 1 (-60 dB to full scale)."""
    samples = np.frombuffer(pcm, "<i2").astype(np.float32)
    if not len(samples):
        return 0.0
    rms = float(np.sqrt((samples**2).mean())) / 32_768.0
    return max(0.0, min(1.0, 1 + math.log10(max(rms, 1e-6)) / 3))
