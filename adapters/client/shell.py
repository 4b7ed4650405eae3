"""The client's interface and its one connection loop, written once for trio and asyncio.

``DuplexClientBase`` owns a ``ClientCore`` and moves frames between it and a ``Transport``: one reader, one writer, one
watchdog, started afresh for each connection. It imports no event loop; the two shells give it one (``Loop``).
"""

from __future__ import annotations

import random
import secrets
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from adapters.client.core import CLOSING, ENDED, HANDSHAKE, IDLE, LIVE, ClientCore
from adapters.client.credentials import ReconnectPolicy, ResumeCredentials
from adapters.client.errors import ClientMisuse, DuplexProtocolError, HandshakeRefused
from adapters.client.frames import DuplexEvent, pictures_of, read_error, read_refusal
from adapters.client.handle import ResponseHandle
from adapters.client.mismatch import connection_lost
from adapters.client.options import CoreOptions, CoreStatistics
from adapters.client.responses import ResponseState
from adapters.client.streams import Bell, Stream
from adapters.client.transport import ConnectFn, Loop, Stop, Transport, TransportClosed, TransportRefused, duplex_url
from adapters.wire.schema import audio, names

HANDLES_KEPT = 16
WAITING_BYTES_SOFT = 1024 * 1024
"""While connected, senders wait when so much has not gone out yet."""
CHUNK_PERIOD_MS = 1_000
LATE_NS = 500_000_000
"""A watchdog that wakes so much too late was kept from running, and so was the reader."""
CATCH_UP_S = 1.0
HASTE_S = 1.0
"""For the last words of a client whose block has failed."""


class DuplexClientBase:
    """One client of one session; use ``trio_client.DuplexClient`` or ``asyncio_client.DuplexClient``."""

    def __init__(
        self,
        url: str,
        *,
        loop: Loop,
        connect: ConnectFn,
        model: str | None = None,
        config: Mapping[str, Any] | None = None,
        resume: ResumeCredentials | None = None,
        reconnect: ReconnectPolicy | None = ReconnectPolicy(),  # noqa: B008 - frozen
        heartbeat_interval_s: float | None = 30.0,
        handshake_timeout_s: float = 30.0,
        api_key: str | None = None,
        strict_stream: bool = True,
    ) -> None:
        self._url = duplex_url(url, model)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._loop = loop
        self._connect = connect
        session = dict(config or {})
        if model and "model" not in session:
            session["model"] = model
        options = CoreOptions(
            config=session,
            reconnect=reconnect,
            heartbeat_ms=None if heartbeat_interval_s is None else int(heartbeat_interval_s * 1_000),
            handshake_ms=int(handshake_timeout_s * 1_000),
            strict_stream=strict_stream,
        )
        self._core = ClientCore(options, f"c{secrets.token_hex(6)}", resume)
        self._wake = Bell(loop.flag)
        self._drained = Bell(loop.flag)
        self._ready = loop.flag()
        self._over = loop.flag()
        self._subscribers: weakref.WeakSet[Stream[DuplexEvent]] = weakref.WeakSet()
        self._responses: Stream[ResponseHandle] = Stream(loop.flag, items_max=HANDLES_KEPT * 4)
        self._handles: OrderedDict[str, ResponseHandle] = OrderedDict()
        self._closed: TransportClosed | None = None
        self._refusal: HandshakeRefused | None = None
        self._detaching = False
        self._sending = False
        self._stop: Stop | None = None

    # -- facts ----------------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> str | None:
        """Given out by the server at the handshake."""
        return self._core.session_id

    @property
    def session_info(self) -> dict[str, Any]:
        """The session object as the server last sent it."""
        return self._core.session_info

    @property
    def generation(self) -> int:
        """Ordinal of this attachment within the session."""
        return self._core.generation

    @property
    def resume_token(self) -> str | None:
        """A secret that rotates at every resume; None where the session cannot be resumed."""
        return self._core.resume_token

    @property
    def is_connected(self) -> bool:
        """Frames flow now; False in a reconnect gap."""
        return self._core.phase == LIVE

    @property
    def refusal(self) -> HandshakeRefused | None:
        """In a reconnect gap: what the server answered to the last attempt, if it answered."""
        return None if self.is_connected else self._refusal

    @property
    def reconnect(self) -> ReconnectPolicy | None:
        """How a dropped connection is resumed; None: not at all."""
        return self._core.options.reconnect

    @property
    def input_ms(self) -> int:
        """Input audio queued so far, on the session's input clock."""
        return self._core.input_ms

    @property
    def input_format(self) -> tuple[str, int]:
        """(encoding, rate in Hz) that ``append_audio`` takes."""
        return self._core.input_format

    def credentials(self) -> ResumeCredentials:
        """For a client in another process to go on from this instant. Raises ClientMisuse where there is no token."""
        return self._core.credentials()

    def statistics(self) -> CoreStatistics:
        """Counts since the client began."""
        return self._core.statistics()

    def response_state(self, response_id: str) -> ResponseState | None:
        """What is known of a response, while it is remembered."""
        return self._core.responses.get(response_id)

    # -- input ----------------------------------------------------------------------------------------------------

    async def append_audio(
        self, pcm: bytes, *, is_speech: bool | None = None, video_frames: Sequence[str] | None = None
    ) -> str:
        """Append one chunk of input audio in the session's input format; the event's id.

        ``video_frames`` are base64 JPEG or PNG; a data URL's prefix is stripped. Waits while much is unsent; in a
        reconnect gap it buffers instead, and raises SendBufferFull at the bound.
        """
        hints: dict[str, Any] = {}
        if is_speech is not None:
            hints["is_speech"] = is_speech
        if video_frames:
            hints["video_frames"] = [frame.rpartition(",")[2] for frame in video_frames]
        event_id = self._core.append_audio(pcm, hints)
        await self._pushed()
        return event_id

    async def stream_pcm(
        self,
        pcm: bytes,
        *,
        chunk_ms: int = 200,
        realtime: bool = True,
        is_speech: bool | None = None,
        video_frames: Sequence[str] | None = None,
        stacked_video_frames: Sequence[str | None] | None = None,
    ) -> int:
        """Append ``pcm`` in chunks of ``chunk_ms``. In real time each chunk leaves when a microphone would have filled
        it. One of ``video_frames`` goes with the chunk that closes each of the model's units, and behind it the unit's own of
        ``stacked_video_frames`` (several moments in one picture), where it has one; returns how many of the first went."""
        if chunk_ms <= 0:
            raise ValueError("chunk_ms must be positive")
        encoding, rate = self._core.input_format
        size = audio.size_of_ms(chunk_ms, encoding, rate)
        capabilities = self.session_info.get("capabilities") or {}
        unit_ms = int(capabilities.get("chunk_period_ms") or CHUNK_PERIOD_MS)
        began_ns, sent_ms, frames_sent = self._loop.now_ns(), 0, 0
        for start in range(0, len(pcm), size):
            chunk = pcm[start : start + size]
            closed_before = sent_ms // unit_ms
            sent_ms += audio.duration_ms(len(chunk), encoding, rate)
            if realtime:
                await self._loop.sleep(max(0.0, (began_ns - self._loop.now_ns()) / 1e9 + sent_ms / 1_000))
            closed = range(closed_before, sent_ms // unit_ms)
            frames = pictures_of(closed, video_frames or (), stacked_video_frames or ())
            frames_sent += len((video_frames or ())[closed.start : closed.stop])
            await self.append_audio(chunk, is_speech=is_speech, video_frames=frames)
        return frames_sent

    async def commit(self, *, final: bool = True, create_response: bool | None = None) -> str:
        """Close the user's turn; ``create_response=False`` leaves it to the model whether it answers."""
        event: dict[str, Any] = {"type": names.AUDIO_COMMIT, "final": final}
        if create_response is not None:
            event["response_create"] = create_response
        return await self.send(event)

    async def clear_input(self) -> str:
        """Drop input that was not committed."""
        return await self.send({"type": names.AUDIO_CLEAR})

    async def send_text(self, text: str, *, create_response: bool = True) -> str:
        """A typed turn of the user; the id of the item's event."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        event_id = await self.send({"type": names.ITEM_CREATE, "item": item})
        if create_response:
            await self.send({"type": names.RESPONSE_CREATE})
        return event_id

    async def update_session(self, session: Mapping[str, Any]) -> str:
        """Change the live session; the answer is ``session.updated`` or ``error``."""
        return await self.send({"type": names.SESSION_UPDATE, "session": dict(session)})

    # -- playback and interruption --------------------------------------------------------------------------------

    async def ack_playback(
        self,
        played_ms: float,
        *,
        response_id: str | None = None,
        item_id: str | None = None,
        committed_ms: float | None = None,
        truncate: bool = False,
        at_once: bool = False,
    ) -> None:
        """Report cumulative playback of a response (the latest by default). Call it as often as you like: reports go
        out at most every 250 ms, the first, the last and those ``at_once`` without delay."""
        self._core.note_played(
            played_ms, response_id, item_id=item_id, committed_ms=committed_ms, truncate=truncate, at_once=at_once
        )
        await self._pushed()

    async def cancel_response(self, response_id: str | None = None) -> str:
        """Cancel the active response, or this one."""
        return await self.send({"type": names.RESPONSE_CANCEL} | ({"response_id": response_id} if response_id else {}))

    async def barge_in(self, *, played_ms: float | None = None, response_id: str | None = None) -> str:
        """The user takes the floor: the answer is cut. Say how much of it was heard, for the history to be true."""
        if played_ms is not None:
            self._core.note_played(played_ms, response_id, at_once=True)
        return await self.send({"type": names.BARGE_IN})

    async def send(self, event: Mapping[str, Any]) -> str:
        """Send any client event; its event id. Raises SendBufferFull, or what ended the client."""
        event_id = self._core.send(event)
        await self._pushed()
        return event_id

    # -- output ---------------------------------------------------------------------------------------------------

    def events(self) -> Stream[DuplexEvent]:
        """Every server event from now on. Any number of streams; one that is not drained loses its oldest events and
        counts them in ``dropped``. Ends with the session, or raises what ended the client."""
        stream: Stream[DuplexEvent] = Stream(self._loop.flag)
        if self._core.phase == ENDED:
            stream.end(self._core.failure)
        self._subscribers.add(stream)
        return stream

    def __aiter__(self) -> AsyncIterator[DuplexEvent]:
        return self.events()

    def responses(self) -> Stream[ResponseHandle]:
        """Responses, each once its decision is known. One consumer for the client's whole life. Raises
        DuplexProtocolError where the server refused a request; iterating may go on after it."""
        return self._responses

    async def wait_for(self, *types: str, timeout_s: float) -> DuplexEvent:
        """The next event of one of these types. Raises TimeoutError, or what ended the client."""
        async with self.events() as stream:
            return await self._loop.within(timeout_s, lambda: _first_of(stream, types))

    # -- lifecycle ------------------------------------------------------------------------------------------------

    async def close(self, *, reason: str = "client_close", timeout_s: float = 20.0) -> None:
        """Say ``session.close`` and wait for the server's word; after ``timeout_s`` just leave."""
        if self._core.phase == IDLE:
            return
        self._core.close(reason)
        self._rouse()
        if self._core.phase == ENDED:
            self._finish()
            return
        try:
            await self._loop.within(timeout_s, self._over.wait)
        except TimeoutError:
            self._core.disconnected(None, "no answer to session.close")
            self._finish()

    async def detach(self, *, timeout_s: float = 5.0) -> ResumeCredentials:
        """Leave without ending the session; another client may resume it with what this returns. What was queued goes
        out first, for at most ``timeout_s``; in a reconnect gap it is lost."""
        with suppress(TimeoutError):
            await self._loop.within(timeout_s, self._all_sent)
        credentials = self._core.credentials()
        self._detaching = True
        self._core.abandon(ClientMisuse("this client has detached from its session"))
        self._finish()
        return credentials

    async def __aenter__(self) -> Self:
        """Connect, open or resume the session. Raises HandshakeRefused, ConnectionLost, ResyncRequired."""
        self._stop = await self._loop.start(self._supervise)
        try:
            await self._ready.wait()
            if self._core.failure is not None:
                raise self._core.failure
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the session, in haste when the block failed, and stop."""
        assert self._stop is not None
        try:
            if error is None:
                await self.close()
            else:
                await self._loop.in_haste(HASTE_S, lambda: self.close(timeout_s=HASTE_S))
        finally:
            await self._stop()

    async def _supervise(self) -> None:
        """Connect, and connect again, until the client has ended."""
        try:
            while self._core.phase != ENDED:
                reason = await self._one_connection()
                asked_ms = 0 if self._refusal is None else self._refusal.retry_after_ms
                now_ns, chance = self._loop.now_ns(), random.random()
                delay_ms = self._core.retry_delay_ms(now_ns, chance, reason, retry_after_ms=asked_ms)
                if delay_ms is None:
                    break
                await self._loop.sleep(delay_ms / 1_000)
        finally:
            self._finish()

    async def _one_connection(self) -> str:
        self._refusal = None
        try:
            transport = await self._loop.within(
                self._core.options.handshake_ms / 1_000, lambda: self._connect(self._url, self._headers)
            )
        except (TransportRefused, TransportClosed, OSError, TimeoutError) as error:
            return self._not_connected(error)
        self._closed = None
        self._core.connected(self._loop.now_ns())
        try:
            works = (self._read, self._write, self._watch)
            await self._loop.race(*(self._guarded(work, transport) for work in works))
        finally:
            await transport.close(1000, "")
        closed = self._closed or TransportClosed(None, "")
        self._core.disconnected(closed.code, closed.reason)
        self._rouse()
        return str(closed)

    def _not_connected(self, error: Exception) -> str:
        if isinstance(error, TransportRefused):
            self._refusal = read_refusal(error)
            if self._core.phase == IDLE or not self._refusal.retryable:
                self._core.abandon(self._refusal)
            return str(self._refusal)
        lost = connection_lost(error)
        if self._core.phase == IDLE:
            self._core.abandon(lost)
        return lost.reason

    def _guarded(
        self, work: Callable[[Transport], Awaitable[None]], transport: Transport
    ) -> Callable[[], Awaitable[None]]:
        async def guarded() -> None:
            try:
                await work(transport)
            except TransportClosed as closed:
                self._closed = closed

        return guarded

    async def _read(self, transport: Transport) -> None:
        while self._core.phase in (HANDSHAKE, LIVE, CLOSING):
            text = await transport.receive()
            for event in self._core.receive(text, self._loop.now_ns()):
                self._publish(event)
            self._rouse()
            if self._core.phase == LIVE:
                self._ready.set()

    async def _write(self, transport: Transport) -> None:
        while self._core.phase in (HANDSHAKE, LIVE, CLOSING):
            self._core.tick(self._loop.now_ns())
            frame = self._core.next_frame()
            if frame is not None:
                self._sending = True
                await transport.send(frame)
                self._sending = False
                self._drained.ring()
                continue
            due_ns = self._core.next_tick_ns()
            if due_ns is None:
                await self._wake.wait()
                continue
            try:
                await self._loop.within(max(0.0, (due_ns - self._loop.now_ns()) / 1e9), self._wake.wait)
            except TimeoutError:
                continue

    async def _watch(self, transport: Transport) -> None:
        """Give up a server that is silent for too long. When it was this program that was busy, what came meanwhile is read
        first."""
        caught_up = False
        while True:
            overdue_ns = self._core.overdue_at_ns()
            if overdue_ns is None:
                await self._wake.wait()
                continue
            left_ns = overdue_ns - self._loop.now_ns()
            if left_ns < -LATE_NS and not caught_up:
                caught_up = True
                await self._loop.sleep(CATCH_UP_S)
                continue
            if left_ns <= 0:
                raise TransportClosed(None, "the server has not been heard of for too long")
            caught_up = False
            await self._loop.sleep(left_ns / 1e9)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _publish(self, event: DuplexEvent) -> None:
        for stream in list(self._subscribers):
            stream.push(event, event.size_bytes)
        state = self._core.responses.get(str(event.payload.get("response_id"))) if event.audio else None
        if state is not None:
            self._handle(state).push_audio(event.audio)
        for announced in self._core.take_announced():
            self._responses.push(self._handle(announced))
        if event.type == names.RESPONSE_DONE:
            for handle in list(self._handles.values()):
                if handle.status is not None:
                    handle.end()
        # That of a resume is no request of the caller's: the client tries again, or ends with it.
        if event.type == names.ERROR and self._core.phase in (LIVE, CLOSING):
            error = read_error(event.payload)
            self._responses.push(
                DuplexProtocolError(error.code, error.message, param=error.param, event_id=error.event_id)
            )

    def _handle(self, state: ResponseState) -> ResponseHandle:
        handle = self._handles.get(state.response_id) if state.response_id else None
        if handle is None:
            handle = ResponseHandle(state, self._loop.flag)
            if state.response_id:
                self._handles[state.response_id] = handle
            if state.status is not None:
                handle.end()
            while len(self._handles) > HANDLES_KEPT:
                self._handles.popitem(last=False)[1].end()
        return handle

    async def _pushed(self) -> None:
        """Something was queued: wake the writer, and wait while too much is unsent."""
        self._wake.ring()
        await self._loop.sleep(0)
        while self._core.phase == LIVE and self._core.waiting_bytes > WAITING_BYTES_SOFT:
            await self._drained.wait()

    async def _all_sent(self) -> None:
        while self._core.phase == LIVE and (self._core.waiting_bytes or self._sending):
            await self._drained.wait()

    def _rouse(self) -> None:
        self._wake.ring()
        self._drained.ring()

    def _finish(self) -> None:
        """The client has ended: tell everyone who waits."""
        failure = None if self._detaching else self._core.failure
        for stream in list(self._subscribers):
            stream.end(failure)
        for handle in self._handles.values():
            handle.end(failure)
        self._responses.end(failure)
        self._over.set()
        self._ready.set()
        self._rouse()


async def _first_of(stream: Stream[DuplexEvent], types: Sequence[str]) -> DuplexEvent:
    async for event in stream:
        if event.type in types:
            return event
    raise ClientMisuse(f"the session ended before any of {', '.join(types)} came")
