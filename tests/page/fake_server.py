"""A server that tells stories: it serves the page and plays scripted events to it, so that the page is tested alone.

One port for both, as in the real server. A story is an async function that gets a ``Stage`` for each connection; it
speaks the duplex dialect by hand and waits for what the page sends. It runs in a thread of its own, so that a Selenium
test can look at what came in meanwhile.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from adapters import page

RATE = 24_000
UNIT_MS = 200
CHUNK_MS = 100
HEAD_BYTES_MAX = 16 * 1024
_NOT_READY = b'{"ready": false, "reason": "loading"}'
LOADING = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(
    _NOT_READY
)
LOADING += b"Connection: close\r\n\r\n" + _NOT_READY

Event = dict[str, Any]
Story = Callable[["Stage"], Awaitable[None]]


class ReplayStream(trio.abc.Stream):
    """A stream whose first bytes were read already: the request's head, needed to tell a page from a socket."""

    def __init__(self, head: bytes, stream: trio.abc.Stream) -> None:
        self.head = head
        self.stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self.head:
            head, self.head = self.head, b""
            return head
        return await self.stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.stream.aclose()


@attrs.define
class Journal:
    """What outlives a connection: the numbers of the stream, and the input that is durable."""

    number: int = 0
    generation: int = 0
    sent: list[Event] = attrs.Factory(list)
    input_ids: list[str] = attrs.Factory(list)


@attrs.define
class Stage:
    """One connection, as a story sees it."""

    server: FakeServer
    socket: WebSocketConnection
    journal: Journal
    connection: int
    input_ms: int = 0
    """How much of the user's voice came in on this connection."""
    speaking: str = ""
    """The item that is being said."""

    async def send(self, event: Event, *, numbered: bool = True) -> None:
        """Send one event, numbered unless told otherwise."""
        event = {"event_id": f"event_{time.monotonic_ns()}", **event}
        if numbered:
            self.journal.number += 1
            event["server_event_seq"] = self.journal.number
            self.journal.sent.append(event)
        await self.socket.send_message(json.dumps(event))

    async def receive(self) -> Event:
        """The next event from the page; it is durable from here on."""
        event: Event = json.loads(await self.socket.get_message())
        with self.server.lock:
            self.server.received.append(event)
        if event["type"] == "input_audio_buffer.append":
            self.input_ms += CHUNK_MS
        if event["type"] not in ("session.event_ack", "session.resume", "session.heartbeat"):
            self.journal.input_ids.append(event["event_id"])
        return event

    async def wait_for(self, *types: str) -> Event:
        """Read until an event of one of these types comes."""
        while True:
            event = await self.receive()
            if event["type"] in types:
                return event

    async def drain(self) -> None:
        """Read until the page goes away."""
        while True:
            await self.receive()

    async def greet(self) -> None:
        """Answer the first frame with a fresh session."""
        first = await self.wait_for("session.update")
        self.journal.generation += 1
        session = {"id": "session_1", "unit_ms": UNIT_MS, "recommended_prebuffer_ms": 80, **first["session"]}
        credentials = {"attachment_generation": self.journal.generation, "resume_token": "token_1"}
        await self.send({"type": "session.created", "session": session, **credentials}, numbered=False)
        await self.send({"type": "session.updated", "session": session})

    async def resumed(self, last_event_id: str | None, skipped: list[list[int]] | None = None) -> Event:
        """Answer a session.resume; replays nothing by itself. Returns the page's frame."""
        first = await self.wait_for("session.resume")
        self.journal.generation += 1
        answer = {
            "type": "session.resumed",
            "session_id": "session_1",
            "session": {"id": "session_1"},
            "attachment_generation": self.journal.generation,
            "resume_token": f"token_{self.journal.generation}",
            "skipped": skipped or [],
            "input_ms": 0,
            "last_event_id": last_event_id,
        }
        await self.send(answer, numbered=False)
        return first

    async def listen(self, item_id: str) -> None:
        """The user begins to speak, a little before now."""
        self.speaking = item_id
        start = {"type": "input_audio_buffer.speech_started", "item_id": item_id}
        await self.send({**start, "audio_start_ms": max(0, self.input_ms - 3 * CHUNK_MS)})

    async def hear(self, item_id: str, transcript: str) -> None:
        """The user said ``transcript``."""
        if self.speaking != item_id:
            await self.listen(item_id)
        self.speaking = ""
        stop = {"type": "input_audio_buffer.speech_stopped", "item_id": item_id}
        await self.send({**stop, "audio_end_ms": self.input_ms})
        await self.send({"type": "input_audio_buffer.committed", "item_id": item_id, "previous_item_id": None})
        done = {"type": "conversation.item.input_audio_transcription.completed", "item_id": item_id}
        await self.send({**done, "content_index": 0, "transcript": transcript})

    async def begin(self, name: str) -> None:
        """response.created and its item."""
        await self.send({"type": "response.created", "response": {"id": name, "status": "in_progress"}})
        item = {"id": f"item_{name}", "type": "message", "role": "assistant", "content": []}
        await self.send({"type": "conversation.item.added", "item": item, "previous_item_id": None})

    async def speak(self, name: str, words: str, *, first_unit: int = 0) -> None:
        """Audio and text of ``words``, one word a unit of 200 ms, as fast as the socket takes it."""
        place = {"response_id": name, "item_id": f"item_{name}", "output_index": 0, "content_index": 0}
        chars = 0
        for unit, word in enumerate(words.split(" "), first_unit):
            text = word if unit == 0 else f" {word}"
            chars += len(text)
            marks = [{"text_chars": chars, "audio_end_ms": (unit + 1) * UNIT_MS}]
            delta = {
                "type": "response.output_audio.delta",
                "delta": voice(unit),
                "metadata": {"audio_text_marks": marks},
            }
            await self.send({**delta, **place})
            await self.send({"type": "response.output_audio_transcript.delta", "delta": text, **place})

    async def finish(self, name: str, status: str, heard: str, **metadata: Any) -> None:
        """response.done; for a completed answer the end of its audio before it."""
        if status == "completed":
            await self.send({"type": "response.output_audio.done", "response_id": name, "item_id": f"item_{name}"})
        content = [{"type": "output_audio", "transcript": heard}]
        item = {"id": f"item_{name}", "role": "assistant", "status": "completed", "content": content}
        response = {"id": name, "status": status, "output": [item], "metadata": metadata}
        await self.send({"type": "response.done", "response": response})


def voice(unit: int) -> str:
    """200 ms of something like a syllable, as base64 pcm16."""
    count = RATE * UNIT_MS // 1000
    samples = []
    for n in range(count):
        envelope = math.sin(math.pi * n / count) ** 0.6 * (0.25 + 0.12 * math.sin(unit * 1.7))
        pitch = 150 + 20 * math.sin(unit * 2.3)
        angle = 2 * math.pi * pitch * n / RATE
        samples.append(int(32_767 * envelope * 0.5 * (math.sin(angle) + 0.5 * math.sin(3 * angle))))
    return base64.b64encode(struct.pack(f"<{count}h", *samples)).decode()


class FakeServer:
    """Serves the page and tells ``story`` to every connection. Use as a context manager; ``url`` is its address."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.received: list[Event] = []
        self.errors: list[BaseException] = []
        self.lock = threading.Lock()
        self.journal = Journal()
        self.connections = 0
        self.loading = False
        """As a server whose model is not there yet: it serves the page, and says that it is not ready."""
        self._links: set[trio.CancelScope] = set()
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._cancel: trio.CancelScope | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/"

    def of_type(self, *types: str) -> list[Event]:
        """What the page has sent so far of these types, in order."""
        with self.lock:
            return [event for event in self.received if event["type"] in types]

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise TimeoutError("the fake server did not start")
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
        if self.errors:
            raise self.errors[0]

    def stop(self) -> None:
        """Close every connection and the port; stopping twice is stopping once."""
        if self._thread.is_alive() and self._token is not None and self._cancel is not None:
            self._token.run_sync_soon(self._cancel.cancel)
            self._thread.join(10)

    def drop(self) -> None:
        """End every connection without a word."""
        assert self._token is not None
        for scope in self._links:
            self._token.run_sync_soon(scope.cancel)

    def _main(self) -> None:
        trio.run(self._serve)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._cancel:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.port = listeners[0].socket.getsockname()[1]
            self._ready.set()
            await trio.serve_listeners(self._connection, listeners)

    async def _connection(self, stream: trio.SocketStream) -> None:
        try:
            head = b""
            while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES_MAX:
                data = await stream.receive_some()
                if not data:
                    return
                head += data
            if self.loading and (b"upgrade: websocket" in head.lower() or b"GET /readyz" in head):
                await stream.send_all(LOADING)
                await stream.aclose()
            elif b"upgrade: websocket" in head.lower():
                await self._tell(head, stream)
            else:
                await stream.send_all(http_answer(head))
                await stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def _tell(self, head: bytes, stream: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:
            self._links.add(nursery.cancel_scope)
            request = await wrap_server_stream(nursery, ReplayStream(head, stream))
            socket = await request.accept()
            self.connections += 1
            try:
                await self.story(Stage(self, socket, self.journal, self.connections))
            except ConnectionClosed:
                pass
            except (AssertionError, KeyError, ValueError) as error:
                self.errors.append(error)
            await socket.aclose()
            nursery.cancel_scope.cancel()


def http_answer(head: bytes) -> bytes:
    """The page's asset for a request head, with the headers that a server should send."""
    path = head.split(b" ", 2)[1].decode().partition("?")[0]
    asset = page.asset_for_path(path)
    if asset is None:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    headers = {"Content-Type": asset.content_type, "ETag": asset.etag, "Content-Length": str(len(asset.body))}
    lines = [f"{name}: {value}" for name, value in {**headers, **page.SECURITY_HEADERS}.items()]
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "Connection: close", "", ""]).encode() + asset.body
