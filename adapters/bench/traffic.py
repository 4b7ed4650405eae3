"""Many sessions that talk and listen in real time, from a process of their own that costs as little as it can: raw sockets in
one loop, frames made once, of what comes in a few bytes looked at. What is measured beside it is then the server.

The process is told what to do by lines on its stdin, and answers each by a line of JSON on its stdout:

    (at the start)  {"open": N, "wanted": N, "why": ""} once all talk, or when that takes too long
    reset           {}; what was counted so far is forgotten
    report          Report, as an object

It ends with its stdin.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from urllib.parse import urlsplit

import attrs
import pybase64

from adapters.wire.schema import names

RATE = 16_000
EVERY_MS = 200
"""An append each, and a delta of the scripted model each: five of both a second."""
OPENING_AT_ONCE = 8
OPEN_WAIT_S = 30.0
OPEN_WAIT_EACH_S = 0.1
RECEIVE_BYTES = 256 * 1024
UNSENT_BYTES_MAX = 1024 * 1024
"""A server that takes no more than this behind is not given more."""

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
_DELTA = f'{{"type":"{names.AUDIO_DELTA}"'.encode()
_UPDATED = f'{{"type":"{names.SESSION_UPDATED}"'.encode()
_DONE = f'{{"type":"{names.RESPONSE_DONE}"'.encode()
_HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def frame(payload: bytes, opcode: int = TEXT) -> bytes:
    """A client's frame, masked with a key of zeros: the server unmasks it like any other, and we need not mask it."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    else:
        length = b"\xfe" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xff" + size.to_bytes(8, "big")
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


def event(**fields: object) -> bytes:
    """A client event as a frame."""
    return frame(json.dumps(fields).encode())


SESSION = {"turn_detection": None}
CONFIGURE = event(type=names.SESSION_UPDATE, session=SESSION)


def append(every_ms: int) -> bytes:
    """So much silence."""
    return event(type=names.AUDIO_APPEND, audio=pybase64.b64encode_as_string(bytes(RATE * every_ms // 1_000 * 2)))


def question(units: int) -> bytes:
    """Asks for an answer of so many units."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"units={units}"}]}
    return event(type=names.ITEM_CREATE, item=item) + event(type=names.RESPONSE_CREATE)


@attrs.define
class Report:
    """Counts since the last reset. ``lateness_ms``: how long each delta took from its due time at the model. A session's
    model keeps an even pace; the pace is taken from the session's own quickest delta, and that one is given the time of the
    quickest answer of all sessions, from its question on. So it is an upper bound. ``lag_ms``: how late this process itself
    was with each append. ``lost``: connections that the server closed; ``ended``: answers that came to an early end."""

    deltas: int = 0
    appends: int = 0
    lost: int = 0
    ended: int = 0
    held_back: int = 0
    """Appends that were not sent, since the server takes none."""
    lateness_ms: list[float] = attrs.field(factory=list)
    lag_ms: list[float] = attrs.field(factory=list)


@attrs.define(eq=False)
class Voice:
    """One session's connection. ``paced``: deltas of its answer so far; ``best_s``: when the first would have come if all had
    come as early as the earliest."""

    socket: socket.socket
    upgraded: bool = False
    talks: bool = False
    closed: bool = False
    received: bytearray = attrs.field(factory=bytearray)
    unsent: bytes = b""
    asked_at: float = 0.0
    paced: int = 0
    best_s: float = math.inf
    offsets_s: list[float] = attrs.field(factory=list)

    def send(self, data: bytes) -> None:
        """As much as the kernel takes; the rest waits for ``flush``. Raises OSError."""
        if self.unsent:
            self.unsent += data
            return
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        self.unsent = data[sent:]

    def flush(self) -> None:
        """Raises OSError."""
        data, self.unsent = self.unsent, b""
        self.send(data)

    def frames(self) -> Iterator[tuple[int, memoryview]]:
        """The whole frames that have come: (opcode, payload). The payload is good until the next one is asked for."""
        at, got = 0, self.received
        with memoryview(bytes(got)) as view:
            while (end := _end(got, at)) is not None:
                start, stop = end
                if stop > len(got):
                    break
                yield got[at] & 0x0F, view[start:stop]
                at = stop
        del got[:at]


def _end(got: bytearray, at: int) -> tuple[int, int] | None:
    """Where the payload of a server's frame begins and ends; None: not enough of its head is there."""
    if len(got) < at + 2:
        return None
    size, start = got[at + 1], at + 2
    if size >= 126:
        start += 2 if size == 126 else 8
        if len(got) < start:
            return None
        size = int.from_bytes(got[at + 2 : start], "big")
    return start, start + size


@attrs.define(eq=False)
class Traffic:
    """All of them, and the one loop. ``every_ms``: from one append of a session to its next, and the model's unit."""

    url: str
    wanted: int
    units: int
    every_ms: int = EVERY_MS
    append: bytes = attrs.field(default=attrs.Factory(lambda self: append(self.every_ms), True))
    selector: selectors.BaseSelector = attrs.field(factory=selectors.DefaultSelector)
    voices: list[Voice] = attrs.field(factory=list)
    turns: deque[tuple[float, Voice]] = attrs.field(factory=deque)
    """Who appends next, and when: all keep the same pace, so the order stays."""
    report: Report = attrs.field(factory=Report)
    why: str = ""

    @property
    def every_s(self) -> float:
        """As ``every_ms``."""
        return self.every_ms / 1_000

    def open(self) -> None:
        """Connect and configure, until all talk or were refused, or it takes too long."""
        give_up_at = time.perf_counter() + OPEN_WAIT_S + self.wanted * OPEN_WAIT_EACH_S
        ready = 0
        while ready + self.report.lost < self.wanted and time.perf_counter() < give_up_at:
            on_their_way = len(self.voices) - ready - self.report.lost
            if len(self.voices) < self.wanted and on_their_way < OPENING_AT_ONCE:
                self._connect()
            self._look(0.002)
            ready = sum(voice.talks and not voice.closed for voice in self.voices)
        if ready < self.wanted:
            self.why = f"{ready} of {self.wanted} sessions opened"

    def _connect(self) -> None:
        where = urlsplit(self.url)
        assert where.hostname is not None
        assert where.port is not None
        voice = Voice(socket.create_connection((where.hostname, where.port)))
        voice.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        voice.socket.setblocking(False)
        self.voices.append(voice)
        self.selector.register(voice.socket, selectors.EVENT_READ, voice)
        voice.send(_HANDSHAKE.format(path=f"{where.path}?{where.query}", host=where.hostname).encode())

    def run(self) -> None:
        """Answer stdin, for as long as there is one."""
        os.set_blocking(sys.stdin.fileno(), False)
        self.selector.register(sys.stdin, selectors.EVENT_READ)
        _say({"open": sum(voice.talks for voice in self.voices), "wanted": self.wanted, "why": self.why})
        self._ask_in_turn()
        while not sys.stdin.closed:
            self._look(self._append_who_is_due())

    def _ask_in_turn(self) -> None:
        """The first appends and questions, spread over one beat."""
        began = time.perf_counter()
        talking = [voice for voice in self.voices if voice.talks and not voice.closed]
        self.turns.extend((began + number * self.every_s / len(talking), voice) for number, voice in enumerate(talking))

    def _append_who_is_due(self) -> float:
        """How long until the next is."""
        while self.turns:
            due_at, voice = self.turns[0]
            now = time.perf_counter()
            if due_at > now:
                return due_at - now
            self.turns.popleft()
            if voice.closed:
                continue
            self.turns.append((due_at + self.every_s, voice))
            self.report.lag_ms.append((now - due_at) * 1_000)
            if len(voice.unsent) > UNSENT_BYTES_MAX:
                self.report.held_back += 1
                continue
            if not voice.asked_at:
                voice.asked_at = now
                self._guarded(voice, question(self.units))
            self._guarded(voice, self.append)
            self.report.appends += 1
        return 1.0

    def _guarded(self, voice: Voice, data: bytes) -> None:
        try:
            voice.send(data)
        except OSError:
            self._lose(voice)
        else:
            self._watch(voice)

    def _watch(self, voice: Voice) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if voice.unsent else 0)
        if not voice.closed and self.selector.get_key(voice.socket).events != wanted:
            self.selector.modify(voice.socket, wanted, voice)

    def _look(self, timeout_s: float) -> None:
        for key, events in self.selector.select(timeout_s):
            if key.data is None:
                self._obey()
                continue
            if events & selectors.EVENT_READ:
                self._receive(key.data)
            if events & selectors.EVENT_WRITE and not key.data.closed:
                try:
                    key.data.flush()
                except OSError:
                    self._lose(key.data)
                self._watch(key.data)

    def _obey(self) -> None:
        line = sys.stdin.readline().strip()
        if line == "reset":
            self.report = Report(lost=self.report.lost)
            for voice in self.voices:
                voice.offsets_s.clear()
            _say({})
        elif line == "report":
            self.report.lateness_ms = self._lateness_ms()
            _say(attrs.asdict(self.report))
        else:
            sys.stdin.close()

    def _lateness_ms(self) -> list[float]:
        heard = [voice for voice in self.voices if voice.paced]
        quickest_s = min((voice.best_s - voice.asked_at for voice in heard), default=0.0)
        return [(offset - voice.best_s + quickest_s) * 1_000 for voice in heard for offset in voice.offsets_s]

    def _receive(self, voice: Voice) -> None:
        try:
            data = voice.socket.recv(RECEIVE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._lose(voice)
            return
        now = time.perf_counter()
        voice.received += data
        if not voice.upgraded and not self._upgraded(voice):
            return
        for opcode, payload in voice.frames():
            self._take(voice, opcode, payload, now)

    def _upgraded(self, voice: Voice) -> bool:
        head, found, rest = bytes(voice.received).partition(b"\r\n\r\n")
        if found:
            voice.upgraded = head.startswith(b"HTTP/1.1 101")
            voice.received[:] = rest
            if voice.upgraded:
                self._guarded(voice, CONFIGURE)
            else:
                self._lose(voice)
        return voice.upgraded

    def _take(self, voice: Voice, opcode: int, payload: memoryview, now: float) -> None:
        if opcode == CLOSE:
            self._lose(voice)
        elif opcode == PING:
            self._guarded(voice, frame(bytes(payload), PONG))
        elif (start := bytes(payload[:64])).startswith(_DELTA):
            offset_s = now - voice.paced * self.every_s
            voice.paced += 1
            voice.offsets_s.append(offset_s)
            voice.best_s = min(voice.best_s, offset_s)
            self.report.deltas += 1
        elif start.startswith(_UPDATED):
            voice.talks = True
        elif start.startswith(_DONE):
            self.report.ended += 1

    def _lose(self, voice: Voice) -> None:
        if not voice.closed:
            voice.closed = True
            self.report.lost += 1
            self.selector.unregister(voice.socket)
            voice.socket.close()


def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    traffic = Traffic(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    traffic.open()
    traffic.run()
