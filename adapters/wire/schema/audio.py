"""Audio on the wire: one channel, little-endian, base64 inside JSON."""

from __future__ import annotations

import base64
import binascii

PCM16 = "pcm16"
PCM_F32LE = "pcm_f32le"
G711_ULAW = "g711_ulaw"
G711_ALAW = "g711_alaw"

SAMPLE_BYTES = {PCM16: 2, PCM_F32LE: 4, G711_ULAW: 1, G711_ALAW: 1}

ENCODING_NAMES = {
    "pcm16": PCM16,
    "pcm": PCM16,
    "audio/pcm": PCM16,
    "pcm_s16le": PCM16,
    "s16le": PCM16,
    "pcm_f32le": PCM_F32LE,
    "g711_ulaw": G711_ULAW,
    "audio/pcmu": G711_ULAW,
    "g711_alaw": G711_ALAW,
    "audio/pcma": G711_ALAW,
}
"""Every name under which an encoding may appear on the wire -> the one used inside."""

MIME_NAMES = {PCM16: "audio/pcm", PCM_F32LE: "pcm_f32le", G711_ULAW: "audio/pcmu", G711_ALAW: "audio/pcma"}
"""The name of an encoding inside a GA ``format`` object."""

RATE_MIN_HZ = 8_000
RATE_MAX_HZ = 192_000


def sample_count(size_bytes: int, encoding: str) -> int:
    """Whole samples in ``size_bytes`` bytes of ``encoding`` (one of SAMPLE_BYTES, else KeyError)."""
    return size_bytes // SAMPLE_BYTES[encoding]


def duration_ms(size_bytes: int, encoding: str, rate: int) -> int:
    """Duration of ``size_bytes`` bytes at ``rate`` Hz, in whole ms rounded down."""
    return sample_count(size_bytes, encoding) * 1_000 // rate


def size_of_ms(duration: int, encoding: str, rate: int) -> int:
    """Bytes of ``duration`` ms at ``rate`` Hz, always whole samples."""
    return duration * rate // 1_000 * SAMPLE_BYTES[encoding]


def encode_base64(data: bytes) -> str:
    """Bytes -> base64 text."""
    return base64.b64encode(data).decode("ascii")


def decode_base64(text: str) -> bytes:
    """Base64 text -> bytes. Raises ValueError when the text is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not base64: {error}") from None
