"""Whisper's log-mel spectrogram in numpy: 80 Slaney mel bands of 25 ms Hann windows, a step of 10 ms."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_runtime.models.cascade.parts import HEARING_RATE, Samples

WINDOW = 400
HOP = 160
BANDS = 80

_BREAK_HZ = 1000.0
_LINEAR_HZ = 200.0 / 3
"""Hz of one mel below the break; above it, mels are logarithmic, 27 of them for a factor of 6.4."""
_LOG_STEP = np.log(6.4) / 27


def _to_hz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    break_mel = _BREAK_HZ / _LINEAR_HZ
    return np.where(mel < break_mel, mel * _LINEAR_HZ, _BREAK_HZ * np.exp(_LOG_STEP * (mel - break_mel)))


def mel_filters() -> Samples:
    """[BANDS, WINDOW // 2 + 1] triangles of equal area."""
    top_mel = _BREAK_HZ / _LINEAR_HZ + np.log(HEARING_RATE / 2 / _BREAK_HZ) / _LOG_STEP
    edges_hz = _to_hz(np.linspace(0.0, top_mel, BANDS + 2))
    bins_hz = np.linspace(0.0, HEARING_RATE / 2, WINDOW // 2 + 1)
    rising = (bins_hz[None, :] - edges_hz[:-2, None]) / np.diff(edges_hz)[:-1, None]
    falling = (edges_hz[2:, None] - bins_hz[None, :]) / np.diff(edges_hz)[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * (2.0 / (edges_hz[2:] - edges_hz[:-2]))[:, None]).astype(np.float32)


class LogMel:
    """Audio to what Whisper's encoder takes."""

    def __init__(self) -> None:
        self._filters = mel_filters()
        self._window = np.hanning(WINDOW + 1)[:-1].astype(np.float32)

    def __call__(self, audio: Samples, frames: int) -> Samples:
        """[BANDS, frames] of the first ``frames`` * 10 ms of ``audio``, padded with silence."""
        length = frames * HOP
        padded = np.zeros(length, np.float32)
        padded[: min(length, len(audio))] = audio[:length]
        padded = np.pad(padded, WINDOW // 2, mode="reflect")
        # silence needs no transform: its spectrum is zero
        busy = min(frames, len(audio) // HOP + 3)
        windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:busy]
        power = (np.abs(np.fft.rfft(windows * self._window, axis=1)) ** 2).astype(np.float32)
        bands = np.zeros((BANDS, frames), np.float32)
        # not a matrix product: the threads of numpy's BLAS go on spinning for 50 ms, on the core that the encoder needs
        bands[:, :busy] = np.einsum("bf,tf->bt", self._filters, power)
        logs = np.log10(np.maximum(bands, 1e-10))
        scaled: Samples = ((np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0).astype(np.float32)
        return scaled
