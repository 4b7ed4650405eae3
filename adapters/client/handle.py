"""One answer in the caller's hands: its facts, and its audio as it comes."""

from __future__ import annotations

from collections.abc import Callable

from adapters.client.responses import ResponseState
from adapters.client.streams import Flag, Stream
from adapters.wire.schema import names

HANDLE_AUDIO_BYTES_MAX = 8 * 1024 * 1024
"""Audio that waits unread in one handle; more and the oldest is dropped and counted."""


class ResponseHandle:
    """A response from its first output to its end. ``audio`` has one consumer."""

    def __init__(self, state: ResponseState, flag: Callable[[], Flag]) -> None:
        self._state = state
        self._audio: Stream[bytes] = Stream(flag, items_max=1 << 16, bytes_max=HANDLE_AUDIO_BYTES_MAX)
        self._audio.on_taken = lambda chunk: state.note_delivered(len(chunk))
        self._ended = flag()

    @property
    def response_id(self) -> str:
        """Empty for a bare ``response.listen``."""
        return self._state.response_id

    @property
    def item_id(self) -> str | None:
        """The conversation item that it becomes."""
        return self._state.item_id

    @property
    def decision(self) -> str:
        """``speak``, ``listen``, or ``none`` for one that ended without output."""
        return self._state.decision or "none"

    @property
    def status(self) -> str | None:
        """completed, cancelled, failed, incomplete; None while it runs."""
        return self._state.status

    @property
    def reason(self) -> str | None:
        """Why it ended as it did, where the server says so."""
        return self._state.reason

    @property
    def was_cut(self) -> bool:
        """It was cancelled: throw away what has not been played."""
        return self._state.was_cut

    @property
    def transcript(self) -> str:
        """Its text so far, heard or not."""
        return self._state.transcript

    @property
    def heard_text(self) -> str:
        """The part of it that counts as heard in the server's history; until that has spoken, what has been played."""
        return self._state.heard_text

    @property
    def received_ms(self) -> int:
        """Audio that came."""
        return self._state.received_ms

    @property
    def played_ms(self) -> int:
        """What ``audio`` has handed out: what was played, for a caller that plays each chunk before it takes the next."""
        return self._state.delivered_ms

    @property
    def heard_ms(self) -> int:
        """What was reported as heard with ``ack_playback``."""
        return self._state.played_ms or 0

    @property
    def sample_rate(self) -> int:
        """Of its audio, in Hz."""
        return self._state.rate

    @property
    def dropped_chunks(self) -> int:
        """Chunks that ``audio`` lost because nobody read them."""
        return self._audio.dropped

    def audio(self) -> Stream[bytes]:
        """Chunks in the session's output format, until the answer ends; at a cut what is unread is dropped."""
        return self._audio

    async def wait_done(self) -> ResponseHandle:
        """Return when it has ended, or the client has."""
        await self._ended.wait()
        return self

    def push_audio(self, chunk: bytes) -> None:
        """For the shell: one more chunk came."""
        self._audio.push(chunk, len(chunk))

    def end(self, failure: Exception | None = None) -> None:
        """For the shell: it has ended."""
        if self._state.status == names.STATUS_CANCELLED:
            self._audio.clear()
        self._audio.end(failure)
        self._ended.set()
