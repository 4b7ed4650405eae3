"""What the user says in a talk, and when: a microphone that plays files into a room that is otherwise silent."""

from __future__ import annotations

from dataclasses import dataclass, field

from adapters.command_line.audio_files import speech_span_ms

SAMPLE_BYTES = 2


@dataclass
class Utterance:
    """One thing that is said. Times are ms on the talk's clock, None while it has not been said."""

    name: str
    pcm: bytes = field(repr=False)
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
        self.heard = bytearray()
        """All that was handed out: the user's side of the conversation."""
        self.utterances: list[Utterance] = []
        self._pending = bytearray()

    @property
    def is_silent(self) -> bool:
        """Nothing is left to say."""
        return not self._pending

    @property
    def clock_ms(self) -> int:
        """Sound handed out so far."""
        return len(self.heard) // SAMPLE_BYTES * 1_000 // self.rate

    def say(self, name: str, pcm: bytes) -> Utterance:
        """Queue an utterance; its times are where it will stand on the microphone's clock."""
        utterance = Utterance(name, pcm)
        utterance.began_ms = (len(self.heard) + len(self._pending)) // SAMPLE_BYTES * 1_000 // self.rate
        span = speech_span_ms(pcm, self.rate)
        if span is not None:
            utterance.speech_start_ms = utterance.began_ms + span[0]
            utterance.speech_end_ms = utterance.began_ms + span[1]
        self.utterances.append(utterance)
        self._pending += pcm
        return utterance

    def take(self, chunk_ms: int, now_ms: int) -> bytes:
        """The next ``chunk_ms`` of the room, silence where nothing is said."""
        size = chunk_ms * self.rate // 1_000 * SAMPLE_BYTES
        chunk = bytes(self._pending[:size]).ljust(size, b"\0")
        del self._pending[:size]
        return self.hear(chunk, now_ms)

    def hear(self, chunk: bytes, now_ms: int) -> bytes:
        """Sound that is really there (a sound card's)."""
        self.heard += chunk
        for utterance in self.utterances:
            if (
                utterance.end_sent_ms is None
                and utterance.speech_end_ms is not None
                and utterance.speech_end_ms <= self.clock_ms
            ):
                utterance.end_sent_ms = now_ms
        return chunk
