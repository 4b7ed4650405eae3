"""What the user says in a talk, and when: a microphone that plays files into a room that is otherwise silent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from adapters.command_line.audio_files import Recording

SAMPLE_BYTES = 2


@dataclass
class Utterance:
    """One thing that is said. Times are ms on the talk's clock, None while it has not been said."""

    name: str
    length_ms: int
    began_ms: int | None = None
    speech_start_ms: int | None = None
    speech_end_ms: int | None = None
    end_sent_ms: int | None = None
    """When the chunk that holds the end of its speech was handed to the client."""
    transcript: str | None = None


class Microphone:
    """Hands out the room's sound in chunks; ``say`` puts an utterance into it, behind what is being said."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.utterances: list[Utterance] = []
        self._samples = 0
        self._left = 0
        """Samples of what is still to be said."""
        self._sounds: deque[Iterator[bytes]] = deque()
        self._read = bytearray()
        """Of the first of them."""

    @property
    def is_silent(self) -> bool:
        """Nothing is left to say."""
        return not self._left

    @property
    def clock_ms(self) -> int:
        """Sound handed out so far."""
        return self._ms(self._samples)

    def _ms(self, samples: int) -> int:
        return samples * 1_000 // self.rate

    def say(self, name: str, sound: Recording) -> Utterance:
        """Queue an utterance; its times are where it will stand on the microphone's clock."""
        utterance = Utterance(name, self._ms(sound.samples))
        utterance.began_ms = self._ms(self._samples + self._left)
        if sound.speech_ms is not None:
            utterance.speech_start_ms = utterance.began_ms + sound.speech_ms[0]
            utterance.speech_end_ms = utterance.began_ms + sound.speech_ms[1]
        self.utterances.append(utterance)
        self._sounds.append(sound.pieces())
        self._left += sound.samples
        return utterance

    def take(self, chunk_ms: int, now_ms: int) -> bytes:
        """The next ``chunk_ms`` of the room, silence where nothing is said."""
        size = chunk_ms * self.rate // 1_000 * SAMPLE_BYTES
        while len(self._read) < size and self._sounds:
            piece = next(self._sounds[0], None)
            if piece is None:
                self._sounds.popleft()
            else:
                self._read += piece
        chunk = bytes(self._read[:size]).ljust(size, b"\0")
        del self._read[:size]
        # A file that has become shorter since it was opened ends where it ends.
        self._left = max(0, self._left - size // SAMPLE_BYTES) if self._sounds or self._read else 0
        return self.hear(chunk, now_ms)

    def hear(self, chunk: bytes, now_ms: int) -> bytes:
        """Sound that is really there (a sound card's)."""
        self._samples += len(chunk) // SAMPLE_BYTES
        for utterance in self.utterances:
            if (
                utterance.end_sent_ms is None
                and utterance.speech_end_ms is not None
                and utterance.speech_end_ms <= self.clock_ms
            ):
                utterance.end_sent_ms = now_ms
        return chunk
