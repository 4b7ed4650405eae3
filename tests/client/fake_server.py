"""The model session behind real transports: in memory for trio and asyncio, and a WebSocket on localhost.

It answers like a small voice assistant: ``commit`` or the end of loud input starts an answer of ``answer_ms`` of a tone;
half a second of loud input over an answer cuts it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

from adapters.client.transport import Transport, TransportClosed, TransportRefused
from adapters.wire.schema import names
from tests.client.fake_session import DELTA_MS, RATE, FakeSession

LOUD = 1_000
ENDPOINT_MS = 400
BARGE_IN_MS = 500


def tone(duration_ms: int, hertz: int = 440, amplitude: int = 8_000) -> bytes:
    """pcm16 at 24 kHz."""
    count = duration_ms * RATE // 1_000
    wave = np.sin(np.arange(count) * (2 * math.pi * hertz / RATE)) * amplitude
    return wave.astype("<i2").tobytes()


def silence(duration_ms: int) -> bytes:
    """pcm16 at 24 kHz."""
    return bytes(duration_ms * RATE // 1_000 * 2)


class FakeServer:
    """Sessions by id, each with at most one connection; answers as long as ``run`` is running."""

    def __init__(self, *, answer_ms: int = 1_000, later_answers_ms: int | None = None, lead: float = 4.0) -> None:
        self.session = FakeSession()
        self.answer_ms = answer_ms
        self.later_answers_ms = answer_ms if later_answers_ms is None else later_answers_ms
        self.lead = lead
        """How much faster than real time answers come."""
        self.later_wait_s = 0.0
        """How long the model thinks before each answer but the first."""
        self.bell = trio.Event()
        self.connections = 0
        self.refuse: TransportRefused | None = None
        self.refusals: list[bytes] = []
        """Bodies of the upgrades that are refused first, over a socket."""
        self._heard = 0
        self._loud_ms = 0
        self._quiet_ms = 0
        self.plan: list[str] = []

    def ring(self) -> None:
        bell, self.bell = self.bell, trio.Event()
        bell.set()

    def receive(self, text: str) -> None:
        before = len(self.session.commands)
        self.session.receive(text)
        for command in self.session.commands[before:]:
            if command["type"] in (names.AUDIO_COMMIT, names.RESPONSE_CREATE):
                self.plan.append("answer")
        for chunk in self.session.input[self._heard :]:
            self._listen(np.frombuffer(chunk, "<i2"))
        self._heard = len(self.session.input)
        self.ring()

    def _listen(self, samples: np.ndarray) -> None:
        frame = RATE // 50
        for start in range(0, len(samples) - frame + 1, frame):
            loud = int(np.abs(samples[start : start + frame]).max()) > LOUD
            self._loud_ms += 20 if loud else 0
            self._quiet_ms = 0 if loud else self._quiet_ms + 20
            if self.session.active and self._loud_ms >= BARGE_IN_MS:
                self.session.cut_answer("turn_detected")
            if self._loud_ms and self._quiet_ms == ENDPOINT_MS:
                if not self.session.active:
                    self.plan.append("answer")
                self._loud_ms = 0

    async def answer(self) -> None:
        """Carry out what is planned, one answer after the other."""
        while True:
            while not self.plan:
                await self.bell.wait()
            self.plan.pop(0)
            await trio.sleep(self.later_wait_s if self.session.answers else 0.0)
            mine = self.session.start_answer()
            length_ms = self.answer_ms if self.session.answers == 1 else self.later_answers_ms
            for place in range(length_ms // DELTA_MS):
                if self.session.active != mine:
                    break
                self.session.delta(tone(DELTA_MS), f"word{place} ")
                self.session.pump(2)
                self.ring()
                await trio.sleep(DELTA_MS / 1_000 / self.lead)
            if self.session.active == mine:
                self.session.end_answer()
            self.ring()


class MemoryTransport:
    """One end of a connection to a FakeServer in the same trio run. ``cut`` drops the link from outside."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._lost = False
        server.connections += 1
        server.session.drop()

    async def send(self, text: str) -> None:
        await trio.lowlevel.checkpoint()
        if self._lost:
            raise TransportClosed(None, "cut")
        self._server.receive(text)

    async def receive(self) -> str:
        while not self._lost:
            await trio.lowlevel.checkpoint()
            if self._server.session.frames and not self._lost:
                return self._server.session.frames.pop(0)
            if self._server.session.closed:
                raise TransportClosed(1_000, "client_close")
            await self._server.bell.wait()
        raise TransportClosed(None, "cut")

    async def close(self, code: int, reason: str) -> None:
        self._lost = True

    def cut(self) -> None:
        """The network is gone."""
        self._lost = True
        self._server.session.drop()
        self._server.ring()


class MemoryNetwork:
    """Connects clients to one FakeServer; ``down`` refuses, ``link`` is the latest connection."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.down = False
        self.attempts = 0
        self.urls: list[str] = []
        self.link: MemoryTransport | None = None

    async def connect(self, url: str, headers: Mapping[str, str]) -> Transport:
        self.attempts += 1
        self.urls.append(url)
        await trio.lowlevel.checkpoint()
        if self.server.refuse is not None:
            raise self.server.refuse
        if self.down:
            raise ConnectionRefusedError("connection refused")
        self.link = MemoryTransport(self.server)
        return self.link

    def cut(self) -> None:
        assert self.link is not None
        self.link.cut()


@asynccontextmanager
async def network(**options: float) -> AsyncIterator[MemoryNetwork]:
    """A FakeServer that answers, and a way to it."""
    server = FakeServer(**options)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.answer)
        yield MemoryNetwork(server)
        nursery.cancel_scope.cancel()


async def _serve_one(server: FakeServer, request: WebSocketRequest) -> None:
    if server.refusals:
        body = server.refusals.pop(0)
        await request.reject(503, extra_headers=[(b"content-length", str(len(body)).encode())], body=body)
        return
    connection = await request.accept()
    server.connections += 1
    server.session.drop()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send_frames, server, connection)
        try:
            while True:
                server.receive(await connection.get_message())
        except ConnectionClosed:
            nursery.cancel_scope.cancel()


async def _send_frames(server: FakeServer, connection: WebSocketConnection) -> None:
    while True:
        while server.session.frames:
            try:
                await connection.send_message(server.session.frames.pop(0))
            except ConnectionClosed:
                return
        if server.session.closed:
            await connection.aclose(1_000, "client_close")
            return
        await server.bell.wait()


async def serve(server: FakeServer, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
    """A FakeServer on a free port of localhost, for ever; starts with its URL."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.answer)
        listening = await nursery.start(
            partial(serve_websocket, partial(_serve_one, server), "127.0.0.1", 0, ssl_context=None)
        )
        task_status.started(f"ws://127.0.0.1:{listening.port}/v1/realtime")
