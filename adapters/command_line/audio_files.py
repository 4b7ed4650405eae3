"""WAV files in: any rate, any number of channels, the sample formats that are in use -> pcm16 mono, piece by piece."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soxr

FORMAT_PCM = 1
FORMAT_FLOAT = 3
FORMAT_EXTENSIBLE = 0xFFFE
FORMAT_BYTES_MAX = 4_096
PIECE_FRAMES = 32_768
SPEECH_FRAME_MS = 20
SPEECH_RMS = 0.01
"""A frame louder than this, relative to full scale, counts as speech."""


class BadAudioFile(ValueError):
    """The file is no WAV that can be read; the text says why."""


@dataclass(frozen=True)
class Recording:
    """Something said, as pcm16 mono. It is read again for each use: three hours take no more memory than a second."""

    pieces: Callable[[], Iterator[bytes]]
    samples: int
    speech_ms: tuple[int, int] | None
    """Where speech begins and ends; None when all is quiet."""


def recording(pieces: Callable[[], Iterator[bytes]], rate: int) -> Recording:
    """Reads it through once. Raises what ``pieces`` raises."""
    return Recording(pieces, *measured(pieces(), rate))


def open_wav(path: Path, rate: int) -> Recording:
    """The file at ``rate`` Hz. Raises BadAudioFile, OSError."""
    if path.is_file():
        return recording(lambda: wav_pieces(lambda: path.open("rb"), str(path), rate), rate)
    data = path.read_bytes()  # a pipe is read but once
    return recording(lambda: wav_pieces(lambda: io.BytesIO(data), str(path), rate), rate)


def read_wav(path: Path, rate: int) -> bytes:
    """The whole file as pcm16 mono at ``rate`` Hz. Raises BadAudioFile, OSError."""
    return b"".join(wav_pieces(lambda: path.open("rb"), str(path), rate))


def wav_pieces(open_file: Callable[[], BinaryIO], name: str, rate: int) -> Iterator[bytes]:
    """A WAV file as pcm16 mono at ``rate`` Hz. It is open from the first piece on. Raises BadAudioFile, OSError."""
    with open_file() as file:
        form, left = _find_audio(file, name)
        _, channels, file_rate, bits = form
        frame = channels * bits // 8
        stream = soxr.ResampleStream(file_rate, rate, 1, dtype="float32", quality="HQ") if file_rate != rate else None
        body = file.read(min(left, PIECE_FRAMES * max(frame, 1)))
        while True:
            left -= len(body)
            behind = file.read(min(left, PIECE_FRAMES * max(frame, 1)))
            is_last = len(behind) < max(frame, 1)
            mono = _samples(body, form, name).mean(axis=1)
            if stream is not None:
                mono = stream.resample_chunk(mono, last=is_last)
            yield np.clip(np.rint(mono * 32_768.0), -32_768, 32_767).astype("<i2").tobytes()
            if is_last:
                return
            body = behind


def _find_audio(file: BinaryIO, name: str) -> tuple[tuple[int, int, int, int], int]:
    """Read on to where the samples begin: their format, and how many bytes the file claims to have of them."""
    head = file.read(12)
    if not head:
        raise BadAudioFile(f"{name} is empty")
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        raise BadAudioFile(f"{name} is not a WAV file; convert it first: ffmpeg -i {name} question.wav")
    form: tuple[int, int, int, int] | None = None
    while len(chunk := file.read(8)) == 8:
        kind, size = chunk[:4], struct.unpack_from("<I", chunk, 4)[0]
        if kind == b"data":
            if form is None:
                raise BadAudioFile(f"{name} has audio before its format")
            if not size:
                break
            return form, size
        body = file.read(min(size, FORMAT_BYTES_MAX)) if kind == b"fmt " else b""
        if kind == b"fmt ":
            form = _read_format(body, name)
        file.seek(size + size % 2 - len(body), io.SEEK_CUR)
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


def measured(pieces: Iterable[bytes], rate: int) -> tuple[int, tuple[int, int] | None]:
    """Of pcm16: how many samples, and where speech begins and ends (the first and the last loud frame, in ms)."""
    frame = SPEECH_FRAME_MS * rate // 1_000
    samples, frames, rest = 0, 0, b""
    first: int | None = None
    last = 0
    for piece in pieces:
        samples += len(piece) // 2
        values = np.frombuffer(rest + piece, "<i2").astype(np.float32) / 32_768.0
        count = len(values) // frame
        rest = (rest + piece)[count * frame * 2 :]
        rms = np.sqrt((values[: count * frame].reshape(count, frame) ** 2).mean(axis=1))
        loud = np.flatnonzero(rms > SPEECH_RMS)
        if len(loud):
            first = frames + int(loud[0]) if first is None else first
            last = frames + int(loud[-1]) + 1
        frames += count
    return samples, None if first is None else (first * SPEECH_FRAME_MS, last * SPEECH_FRAME_MS)


def level(pcm: bytes) -> float:
    """Loudness of pcm16 for a meter, 0 to 1 (-60 dB to full scale)."""
    samples = np.frombuffer(pcm, "<i2").astype(np.float32)
    if not len(samples):
        return 0.0
    rms = float(np.sqrt((samples**2).mean())) / 32_768.0
    return max(0.0, min(1.0, 1 + math.log10(max(rms, 1e-6)) / 3))
