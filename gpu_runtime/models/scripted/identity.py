"""Audio that says which unit it is. A soft tone, one pitch for each answer, carries the unit's identity in its four
lowest bits, again and again: any 32 samples in a row tell epoch, response and unit. Only lossless copies keep it
(pcm16, or float32 scaled by 1/32768); a companded or resampled one does not.

A tag is 16 samples: four of sync, then four hexadecimal digits each for epoch, response and unit, so each counts
modulo 65,536.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

_SYNC = (0xA, 0x5, 0xC, 0x3)
_TAG_SAMPLES = 16
_AMPLITUDE = 2_000
_PITCHES_HZ = (262, 294, 330, 392, 440, 524, 588, 660)


@attrs.frozen
class Identity:
    """A unit of an answer: ``response`` is the answer's ordinal in its session from 1, ``unit`` counts from 0."""

    epoch: int
    response: int
    unit: int


@lru_cache(maxsize=64)
def _tone(pitch_hz: int, samples: int, rate: int) -> NDArray[np.int16]:
    """[samples] int16 with the four lowest bits clear; ends fade over 5 ms so that units join without a click."""
    wave = _AMPLITUDE * np.sin(2 * np.pi * pitch_hz * np.arange(samples) / rate)
    fade = min(rate // 200, samples // 2)
    if fade:
        ramp = np.linspace(0.0, 1.0, fade)
        wave[:fade] *= ramp
        wave[-fade:] *= ramp[::-1]
    return (wave.astype(np.int16) & np.int16(~0xF)).astype(np.int16)


def render(identity: Identity, samples: int, rate: int) -> bytes:
    """pcm16 of ``samples`` samples that carries ``identity``."""
    digits = [
        (number >> shift) & 0xF
        for number in (identity.epoch, identity.response, identity.unit)
        for shift in (12, 8, 4, 0)
    ]
    tag = np.array([*_SYNC, *digits], dtype=np.int16)
    tags = np.tile(tag, -(-samples // _TAG_SAMPLES))[:samples]
    tone = _tone(_PITCHES_HZ[identity.response % len(_PITCHES_HZ)], samples, rate)
    return (tone | tags).astype("<i2").tobytes()


def identify(audio: bytes) -> Identity | None:
    """The first unit that is recognised in pcm16 ``audio``; None: nothing of ours is in it."""
    found = identify_all(audio)
    return found[0] if found else None


def identify_all(audio: bytes) -> list[Identity]:
    """The units in pcm16 ``audio`` (a whole recording, say) in order of their playing; repeats in a row count once.

    An odd last byte, silence between the units, and units that were cut anywhere do no harm.
    """
    samples = np.frombuffer(audio[: len(audio) // 2 * 2], dtype="<i2")
    digits = (samples & 0xF).astype(np.int64)
    found: list[Identity] = []
    for start in _tag_starts(digits):
        values = digits[start + 4 : start + _TAG_SAMPLES].reshape(3, 4) @ np.array([4096, 256, 16, 1])
        identity = Identity(*(int(value) for value in values))
        if not found or found[-1] != identity:
            found.append(identity)
    return found


def _tag_starts(digits: NDArray[Any]) -> list[int]:
    """Where tags begin, each confirmed by the same tag right behind it (or by what the recording still has of it: its
    sync word at least). The sync word alone is not enough: a tag that was cut and the silence after it may together be
    as long as one, and would tell of a unit that never was."""
    last = len(digits) - _TAG_SAMPLES - len(_SYNC)
    if last < 0:
        return []
    sync = np.ones(len(digits) - len(_SYNC) + 1, dtype=bool)
    for offset, digit in enumerate(_SYNC):
        sync &= digits[offset : len(digits) - len(_SYNC) + 1 + offset] == digit
    candidates = np.flatnonzero(sync[: last + 1] & sync[_TAG_SAMPLES : last + 1 + _TAG_SAMPLES])
    starts: list[int] = []
    clear_of = 0
    for start in candidates.tolist():
        if start < clear_of:  # inside the tag before: digits that happen to look like a sync word
            continue
        behind = digits[start + _TAG_SAMPLES : start + 2 * _TAG_SAMPLES]
        if not np.array_equal(digits[start : start + len(behind)], behind):
            continue
        clear_of = start + _TAG_SAMPLES
        starts.append(start)
    return starts
