"""Input audio to samples, for ears: every encoding that a session may use, to float32 in -1..1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.session.config import AudioFormat

SAMPLE_BYTES = {"pcm16": 2, "pcm_f32le": 4, "g711_ulaw": 1, "g711_alaw": 1}


def _ulaw_table() -> NDArray[np.float32]:
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    magnitude = ((((code & 0x0F) << 3) + 0x84) << ((code >> 4) & 7)) - 0x84
    return (np.where(code & 0x80, -magnitude, magnitude) / 32_768).astype(np.float32)


def _alaw_table() -> NDArray[np.float32]:
    code = np.arange(256, dtype=np.int32) ^ 0x55
    segment = (code >> 4) & 7
    mantissa = ((code & 0x0F) << 4) + 8
    magnitude = np.where(segment > 0, (mantissa + 0x100) << np.maximum(segment - 1, 0), mantissa)
    return (np.where(code & 0x80, magnitude, -magnitude) / 32_768).astype(np.float32)


_TABLES: dict[str, NDArray[np.float32]] = {"g711_ulaw": _ulaw_table(), "g711_alaw": _alaw_table()}


def decode(audio: bytes, audio_format: AudioFormat) -> NDArray[np.float32]:
    """[samples] float32 at the format's rate. Bytes behind the last whole sample are dropped; float samples that are
    no number count as silence. Raises KeyError for an encoding that is not in core.session.config."""
    size = SAMPLE_BYTES[audio_format.encoding]
    whole = audio[: len(audio) // size * size]
    if audio_format.encoding == "pcm16":
        return np.frombuffer(whole, dtype="<i2").astype(np.float32) / np.float32(32_768)
    if audio_format.encoding == "pcm_f32le":
        floats = np.nan_to_num(np.frombuffer(whole, dtype="<f4"), posinf=1.0, neginf=-1.0)
        clipped: NDArray[np.float32] = np.clip(floats, -1.0, 1.0).astype(np.float32)
        return clipped
    return _TABLES[audio_format.encoding][np.frombuffer(whole, dtype=np.uint8)]
