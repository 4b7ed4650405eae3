"""Audio at the wire's edge: checking what comes in, converting what goes out. One channel, little-endian.

Input is checked and kept as the client sent it: the ear converts it, and the log has the client's own bytes. Output is
the model's pcm16 and is converted after it was numbered, so a resumed client of another rate gets the same stream.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pybase64
from numpy.typing import NDArray

from adapters.wire.problems import Problem
from adapters.wire.schema.audio import G711_ALAW, G711_ULAW, PCM16, PCM_F32LE, SAMPLE_BYTES
from core.session.config import AudioFormat
from gpu_runtime.resampler import Resampler


def decode_audio(value: str, audio: AudioFormat, param: str) -> tuple[bytes, int]:
    """Base64 of whole, finite samples in the session's format -> (bytes, samples). Raises Problem."""
    try:
        data = pybase64.b64decode(value, validate=True)
    except ValueError:
        raise Problem("bad_audio", f"'{param}' is not base64.", param) from None
    sample_bytes = SAMPLE_BYTES[audio.encoding]
    if len(data) % sample_bytes:
        text = f"'{param}' has {len(data)} bytes, not a multiple of {sample_bytes} ({audio.encoding})."
        raise Problem("bad_audio", text, param)
    if audio.encoding == PCM_F32LE and not np.isfinite(np.frombuffer(data, "<f4")).all():
        raise Problem("bad_audio", f"'{param}' has samples that are not numbers.", param)
    return data, len(data) // sample_bytes


def loudness(data: bytes, audio: AudioFormat) -> float:
    """Root mean square of checked input, 0 to 1 (a full-scale square wave). Every chunk of some sessions is measured."""
    if not data:
        return 0.0
    if audio.encoding == PCM16:
        whole = np.frombuffer(data, "<i2").astype(np.float64)  # exact: the squares of hours of it stay below 2**53
        return math.sqrt(float(np.dot(whole, whole)) / len(whole)) / 32_768
    if audio.encoding == PCM_F32LE:
        samples = np.frombuffer(data, "<f4").astype(np.float64)
    else:
        samples = _expand(audio.encoding)[np.frombuffer(data, np.uint8)].astype(np.float64)
    return min(1.0, math.sqrt(float(np.einsum("i,i->", samples, samples)) / len(samples)))


class OutputEncoder:
    """Converts one attachment's answers. The filter's state restarts with each response."""

    def __init__(self) -> None:
        self._response_id: str | None = None
        self._resampler: Resampler | None = None
        self.target = AudioFormat()
        """The format of the response that is being encoded."""

    def encode(self, response_id: str | None, body: bytes, rate: int, target: AudioFormat) -> bytes:
        """pcm16 at ``rate`` -> ``target``; the same bytes when nothing is to be done. A response keeps the format with
        which it began."""
        if response_id != self._response_id or response_id is None:
            self._response_id, self.target = response_id, target
            self._resampler = None if rate == target.rate else Resampler(rate, target.rate)
        target = self.target
        if self._resampler is None and target.encoding == PCM16:
            return body
        samples = np.frombuffer(body, "<i2").astype(np.float32)
        if self._resampler is not None:
            samples = self._resampler.push(samples)
        return _pack(samples, target.encoding)


def _pack(samples: NDArray[np.float32], encoding: str) -> bytes:
    """Samples in the range of int16 -> bytes."""
    if encoding == PCM_F32LE:
        return (samples / np.float32(32_768)).astype("<f4").tobytes()
    pcm = np.clip(np.rint(samples), -32_768, 32_767).astype("<i2")
    if encoding == G711_ULAW:
        return _ulaw_table()[pcm.view(np.uint16)].tobytes()
    if encoding == G711_ALAW:
        return _alaw_table()[pcm.view(np.uint16)].tobytes()
    return pcm.tobytes()


def _every_int16() -> NDArray[np.int32]:
    """[65536] the value of each 16-bit pattern, in the patterns' order."""
    return np.arange(65_536, dtype=np.uint16).view(np.int16).astype(np.int32)


def _segments(magnitude: NDArray[np.int32], first_bit: int) -> NDArray[np.int32]:
    """G.711's chord of each magnitude: how far its highest bit lies above ``first_bit``, 0 to 7."""
    highest = np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int32)
    return np.clip(highest - first_bit, 0, 7)


@cache
def _expand(encoding: str) -> NDArray[np.float32]:
    """[256] G.711 byte -> sample, -1 to 1: the middle of what is coded by it."""
    table = _ulaw_table() if encoding == G711_ULAW else _alaw_table()
    sums = np.bincount(table, weights=_every_int16(), minlength=256)
    counts = np.bincount(table, minlength=256)
    return (sums / np.maximum(counts, 1) / 32_768).astype(np.float32)


@cache
def _ulaw_table() -> NDArray[np.uint8]:
    """[65536] int16 pattern -> G.711 mu-law byte."""
    value = _every_int16() >> 2  # 14 bits
    magnitude = np.minimum(np.abs(value) + 33, 8_191)
    segment = _segments(magnitude, 5)
    mantissa = (magnitude >> (segment + 1)) & 0x0F
    sign = np.where(value < 0, 0x80, 0)
    table: NDArray[np.uint8] = (~(sign | segment << 4 | mantissa) & 0xFF).astype(np.uint8)
    return table


@cache
def _alaw_table() -> NDArray[np.uint8]:
    """[65536] int16 pattern -> G.711 A-law byte."""
    value = _every_int16()
    magnitude = np.where(value >= 0, value, ~value) >> 3  # 13 bits; negative numbers in one's complement
    segment = _segments(magnitude, 4)
    mantissa = np.where(segment == 0, magnitude >> 1, magnitude >> segment) & 0x0F
    sign = np.where(value >= 0, 0x80, 0)
    table: NDArray[np.uint8] = ((sign | segment << 4 | mantissa) ^ 0x55).astype(np.uint8)
    return table
