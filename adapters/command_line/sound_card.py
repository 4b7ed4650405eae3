"""A real microphone and loudspeaker, over the sounddevice library (an optional extra)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import trio

CHUNK_MS = 40
SPEAKER_BYTES_MAX = 24_000 * 2 * 2
"""Two seconds that wait for the loudspeaker; more and the oldest is dropped, so that it never lags behind the talk."""
RECORDED_CHUNKS_MAX = 250


class NoSoundCard(Exception):
    """There is no way to record or play here; the text says what to do."""


class DeviceSound:
    """Bridges the sound card's threads and the talk."""

    def __init__(self) -> None:
        self._to_talk, self._recorded = trio.open_memory_channel[bytes](RECORDED_CHUNKS_MAX)
        self._token = trio.lowlevel.current_trio_token()
        self._speaker = bytearray()
        self._lock = Lock()
        self.dropped_chunks = 0

    async def record(self) -> bytes:
        """The next chunk of the microphone."""
        return await self._recorded.receive()

    def play(self, pcm: bytes) -> None:
        """Queue sound for the loudspeaker."""
        with self._lock:
            self._speaker += pcm
            del self._speaker[: max(0, len(self._speaker) - SPEAKER_BYTES_MAX)]

    def on_recorded(self, data: Any, frames: int, time: Any, status: Any) -> None:
        """Called in the microphone's thread."""
        try:
            self._token.run_sync_soon(self._take, bytes(data))
        except trio.RunFinishedError:
            return

    def on_play(self, out: Any, frames: int, time: Any, status: Any) -> None:
        """Called in the loudspeaker's thread: fill ``out``, with silence where nothing waits."""
        with self._lock:
            size = len(out)
            chunk = bytes(self._speaker[:size])
            del self._speaker[:size]
        out[:] = chunk.ljust(size, b"\0")

    def _take(self, chunk: bytes) -> None:
        try:
            self._to_talk.send_nowait(chunk)
        except trio.WouldBlock:
            self.dropped_chunks += 1


@contextmanager
def open_sound_card(rate: int) -> Iterator[DeviceSound]:
    """The default microphone and loudspeaker, pcm16 mono at ``rate`` Hz. Raises NoSoundCard."""
    try:
        import sounddevice
    except ImportError:
        raise NoSoundCard(
            f"--mic needs the sounddevice library (the extra microphone): {sys.executable} -m pip install sounddevice"
        ) from None
    except OSError as error:
        raise NoSoundCard(
            f"sounddevice cannot find PortAudio ({error}); on Debian and Ubuntu: apt install libportaudio2"
        ) from None
    sound = DeviceSound()
    block = math.ceil(rate * CHUNK_MS / 1_000)
    options: dict[str, Any] = {"samplerate": rate, "channels": 1, "dtype": "int16", "blocksize": block}
    try:
        with (
            sounddevice.RawInputStream(callback=sound.on_recorded, **options),
            sounddevice.RawOutputStream(callback=sound.on_play, **options),
        ):
            yield sound
    except sounddevice.PortAudioError as error:
        raise NoSoundCard(f"the sound card cannot be opened: {error}") from None
