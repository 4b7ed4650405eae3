"""What lies below a WebSocket once its HTTP upgrade was read: the stream, with what the WebSocket library leaves undone.

The library writes each message by itself, and closes without a word when its peer breaks the protocol. Both are mended from
below: data frames may be held back to share a write, and whoever breaks the protocol is sent the Close frame with its
code, and given a moment to read it (closing at once would make the kernel throw it away together with what the peer still
sends).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio
from trio_websocket import CloseReason
from wsproto.frame_protocol import FrameProtocol

CONTROL = 0x08
"""This bit of a frame's first byte makes it a control frame: Close, Ping, Pong."""
CLOSE = 0x88

FAILURES = frozenset({1002, 1003, 1007, 1009, 1010})
"""Close codes of a peer that broke the protocol or sent too much: it may be sending still."""

LAST_WORDS_S = 5.0
QUIET_S = 0.25
LINGER_BYTES = 64 * 1024

_LOST = (trio.BrokenResourceError, trio.ClosedResourceError)


def _still_open() -> CloseReason | None:
    return None


class UpgradedStream(trio.abc.Stream):
    """``read`` is what was read of the stream already; it is read again first."""

    def __init__(self, stream: trio.abc.Stream, read: bytes) -> None:
        self.close_reason: Callable[[], CloseReason | None] = _still_open
        """Why the WebSocket above is closed, if it is."""
        self._stream = stream
        self._read = read
        self._held = b""
        self._holding = False
        self._close_code: int | None = None
        """Of the Close frame that was written."""
        self._writing = trio.Lock()
        self._closing = trio.Lock()
        self._closed = False

    # -- several messages in one write ------------------------------------------------------------------------------

    def hold(self) -> None:
        """Data frames that are written from now on wait for the first one after ``release``."""
        self._holding = True

    def release(self) -> None:
        """The next data frame takes along what was held."""
        self._holding = False

    def drop_held(self) -> None:
        """Forget what was held and not written."""
        self._held, self._holding = b"", False

    # -- the stream ---------------------------------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What was read already comes first."""
        if not self._read:
            return bytes(await self._stream.receive_some(max_bytes))
        await trio.lowlevel.checkpoint()
        given, self._read = self._read[:max_bytes], self._read[len(self._read[:max_bytes]) :]
        return given

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """One frame. A control frame waits for no other."""
        if data[0] & CONTROL:
            if data[0] == CLOSE:
                self._close_code = int.from_bytes(data[2:4], "big")
        elif self._holding:
            self._held += data
            return
        else:
            held, self._held = self._held, b""
            data = held + data if held else data
        await self._write(data)

    async def _write(self, data: bytes | bytearray | memoryview) -> None:
        """The WebSocket's lock keeps its own writes apart; this one keeps them from the last words."""
        try:
            self._writing.acquire_nowait()
        except trio.WouldBlock:
            await self._writing.acquire()
        try:
            await self._stream.send_all(data)
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
            await self.send_all(bytes(frame))
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
