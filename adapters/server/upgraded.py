"""What lies below a WebSocket once its HTTP upgrade was read: the stream, with what the WebSocket library leaves undone.

The library writes each message by itself, closes without a word when its peer breaks the protocol, and loses what a peer
sends before its handshake is answered. All are mended from below: what comes early waits, messages go out here, several in
one write, and whoever breaks the protocol is sent the Close frame with its code, and given a moment to read it (closing at
once would make the kernel throw it away together with what the peer still sends).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import trio
from trio_websocket import CloseReason
from wsproto.frame_protocol import FrameProtocol

CLOSE = 0x88
"""The first byte of a Close frame."""

FAILURES = frozenset({1002, 1003, 1007, 1009, 1010})
"""Close codes of a peer that broke the protocol or sent too much: it may be sending still."""

LAST_WORDS_S = 5.0
QUIET_S = 0.25
LINGER_BYTES = 64 * 1024

_LOST = (trio.BrokenResourceError, trio.ClosedResourceError)


def _still_open() -> CloseReason | None:
    return None


class UpgradedStream(trio.abc.Stream):
    """``head``: the request to upgrade, as it was read of the stream; it is read again first. ``behind``: what was read with
    it; this, and all that the peer sends, is read once the request was answered."""

    def __init__(self, stream: trio.abc.Stream, head: bytes, behind: bytes = b"") -> None:
        self.close_reason: Callable[[], CloseReason | None] = _still_open
        """Why the WebSocket above is closed, if it is."""
        self._stream = stream
        self._head = head
        self._behind = behind
        self._answered = trio.Event()
        self._frames = FrameProtocol(client=False, extensions=[])
        """Makes frames of what is sent; it reads nothing."""
        self._close_code: int | None = None
        """Of the Close frame that was written."""
        self._writing = trio.Lock()
        self._closing = trio.Lock()
        self._closed = False

    # -- several messages in one write ------------------------------------------------------------------------------

    async def send_messages(self, messages: Sequence[bytes | str]) -> None:
        """Whole messages, all in one write, past the WebSocket library: it takes two locks and three turns of the event
        loop for each. Raises trio.BrokenResourceError and ClosedResourceError, also behind a Close frame."""
        await self._write(b"".join([self._frames.send_data(message) for message in messages]), data=True)

    # -- the stream ---------------------------------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What was read already comes first."""
        if self._head:
            await trio.lowlevel.checkpoint()
            given, self._head = self._head[:max_bytes], self._head[len(self._head[:max_bytes]) :]
            return given
        await self._answered.wait()
        if self._behind:
            given, self._behind = self._behind[:max_bytes], self._behind[len(self._behind[:max_bytes]) :]
            return given
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """What the library writes: its half of the handshake, control frames, what is said outside of any session."""
        await self._write(data)

    async def _write(self, frames: bytes | bytearray | memoryview, data: bool = False) -> None:
        """The library's own lock knows nothing of ``send_messages``; this one keeps all writes apart. No data follows a Close
        frame."""
        try:
            self._writing.acquire_nowait()
        except trio.WouldBlock:
            await self._writing.acquire()
        try:
            if data and self._close_code is not None:
                raise trio.ClosedResourceError
            if frames[0] == CLOSE:
                self._close_code = int.from_bytes(frames[2:4], "big")
            self._answered.set()
            await self._stream.send_all(frames)
        finally:
            self._writing.release()

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close, after the Close frame that a peer at fault is owed."""
        try:
            async with self._closing:
                if not self._closed:
                    self._closed = True
                    with trio.move_on_after(LAST_WORDS_S), suppress(*_LOST):
                        await self._take_leave()
        finally:
            await self._stream.aclose()

    async def _take_leave(self) -> None:
        reason = self.close_reason()
        if self._close_code is None and reason is not None and reason.code in FAILURES:
            frame = FrameProtocol(client=False, extensions=[]).close(reason.code, reason.reason)
            await self._write(frame)
        if self._close_code in FAILURES:
            while not await self._falls_silent():
                pass

    async def _falls_silent(self) -> bool:
        with trio.move_on_after(QUIET_S):
            while True:
                try:
                    return not await self._stream.receive_some(LINGER_BYTES)
                except trio.BusyResourceError:  # the library's own reader has not let go yet
                    await trio.sleep(QUIET_S / 10)
        return True
