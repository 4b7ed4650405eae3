"""One worker's life, from its start to its end: who reads, who writes, who watches, and the one reason why it ended."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from core.ports.runtime import FromRuntime, ModelStatistics, RuntimeReady
from gpu_runtime.host.link import Link
from gpu_runtime.host.options import WorkerOptions
from gpu_runtime.host.outbound import Outbound
from gpu_runtime.plugin import Progress
from gpu_runtime.protocol import (
    FROM_WORKER_CODEC,
    TO_WORKER_CODEC,
    Figures,
    FrameBuffer,
    FromWorker,
    Load,
    Ping,
    Pong,
    ProtocolError,
    Unavailable,
)
from gpu_runtime.protocol import Progress as LoadProgress

READ_BYTES = 64 * 1024
READ_BYTES_MAX = 256 * 1024
"""As much as the socket holds, behind a full read: there is one read in a turn of the event loop, for the output of all
sessions. Room for so much costs 23 us more each time."""
_DRAIN_S = 2.0
"""When the process is gone, what it wrote last may still be read; and the other way round."""


@attrs.frozen
class Ending:
    """Why a life ended."""

    reason: str
    unavailable: str | None = None
    """The model said that it cannot be loaded, and this is its message."""
    ready_s: float = 0.0
    """For how long it was ready."""
    last_words: str = ""
    """The last line that it printed: for the person who starts the server, never for a session's log."""


class Life:
    """Runs one worker. ``on_message`` gets what it says to sessions, RuntimeReady first of all."""

    def __init__(
        self,
        link: Link,
        outbound: Outbound,
        options: WorkerOptions,
        on_message: Callable[[FromRuntime], None],
        on_progress: Progress,
    ) -> None:
        self._link = link
        self._outbound = outbound
        self._options = options
        self._on_message = on_message
        self._on_progress = on_progress
        self._scope = trio.CancelScope()
        self._reason: str | None = None
        self._unavailable: str | None = None
        self._ready = trio.Event()
        self._ready_at = 0.0
        self._eof = trio.Event()
        self._writing = trio.Lock()
        self._rounds_silent = 0
        """Since it last answered a ping, or had more to say than one read takes."""
        self._rounds_deaf = 0
        """Since it last answered a ping."""
        self.figures: ModelStatistics | None = None
        """The model's newest."""

    @property
    def pid(self) -> int:
        """The worker's."""
        return self._link.pid

    def kill(self) -> None:
        """As from outside: the life ends when the death is noticed."""
        self._link.kill()

    async def let_go(self) -> None:
        """Tell the worker that nothing more will come; it ends by itself."""
        try:
            async with self._writing:
                await self._link.stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def run(self, settings: dict[str, object]) -> Ending:
        """Live to the end. The process is gone when this returns, cancelled or not."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._link.log_output)
                    nursery.start_soon(self._read)
                    nursery.start_soon(self._watch_exit)
                    nursery.start_soon(self._load, settings)
        finally:
            await self._link.close()
        ready_s = trio.current_time() - self._ready_at if self._ready.is_set() else 0.0
        return Ending(self._reason or "gone", self._unavailable, ready_s, self._link.last_words)

    def _end(self, reason: str) -> None:
        """The first reason counts."""
        if self._reason is None:
            self._reason = reason
            self._scope.cancel()

    async def _load(self, settings: dict[str, object]) -> None:
        """Send the settings, wait for the model, then write and watch."""
        await self._send(TO_WORKER_CODEC.encode(Load(settings)))
        with trio.move_on_after(self._options.load_timeout_s) as loading:
            await self._ready.wait()
        if loading.cancelled_caught:
            self._end(f"not ready after {self._options.load_timeout_s:g} s")
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._ping)

    async def _send(self, data: bytes) -> None:
        """Write; a broken socket is the reader's business, who knows more."""
        try:
            try:
                self._writing.acquire_nowait()  # a turn of the event loop less than waiting for what is almost always free
            except trio.WouldBlock:
                await self._writing.acquire()
            try:
                await self._link.stream.send_all(data)
            finally:
                self._writing.release()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.sleep_forever()

    async def _write(self) -> None:
        while True:
            data = await self._outbound.take()
            await self._send(data)
            self._outbound.wrote()

    async def _ping(self) -> None:
        """Count rounds without an answer, not seconds: if this process itself was held up, one passes and not fifteen. Nor
        is a worker silent of which much waits to be read here, for as long as it may talk without listening."""
        options, number = self._options, 0
        while True:
            if self._rounds_silent * options.ping_interval_s >= options.stall_timeout_s:
                self._end(f"stalled: no sign of life for {options.stall_timeout_s:g} s")
            elif self._rounds_deaf * options.ping_interval_s >= options.deaf_timeout_s:
                self._end(f"stalled: it talks, and has taken nothing for {options.deaf_timeout_s:g} s")
            number += 1
            self._rounds_silent += 1
            self._rounds_deaf += 1
            self._outbound.put_first(TO_WORKER_CODEC.encode(Ping(number)))
            await trio.sleep(options.ping_interval_s)

    async def _watch_exit(self) -> None:
        how = await self._link.wait()
        with trio.move_on_after(_DRAIN_S):
            await self._eof.wait()
        self._end(how)

    async def _read(self) -> None:
        frames, size = FrameBuffer(), READ_BYTES
        try:
            while data := await self._receive(size):
                behind = len(data) >= READ_BYTES
                size = READ_BYTES_MAX if behind else READ_BYTES
                self._rounds_silent = 0 if behind else self._rounds_silent
                for payload in frames.feed(data):
                    self._take(FROM_WORKER_CODEC.decode(payload))
            frames.end()
        except ProtocolError as error:
            # A killed worker leaves a torn frame: then how it ended says more.
            if error.code != "torn_frame":
                self._end(f"protocol error: {error}")
        self._eof.set()
        await trio.sleep(_DRAIN_S)  # if it has ended, _watch_exit knows how
        self._end("it closed its socket")

    async def _receive(self, size: int) -> bytes:
        try:
            return bytes(await self._link.stream.receive_some(size))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    def _take(self, message: FromWorker) -> None:
        match message:
            case Pong():
                self._rounds_silent = self._rounds_deaf = 0
            case Figures(model=model):
                self.figures = model
            case LoadProgress(stage=stage, fraction=fraction):
                self._on_progress(stage, fraction)
            case Unavailable(message=text):
                self._unavailable = text
            case _:
                if isinstance(message, RuntimeReady):
                    self._ready_at = trio.current_time()
                    self._ready.set()
                self._on_message(message)
