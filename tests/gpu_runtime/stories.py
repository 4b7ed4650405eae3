"""Verbs for stories about runtimes: a client that says, asks, cuts off, and waits for what comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs
import numpy as np
import trio

from core.ports.runtime import (
    AbortLane,
    CommitTurn,
    Feed,
    FromRuntime,
    Heard,
    HistoryTurn,
    LaneEnded,
    OpenLane,
    OpenSession,
    Produced,
    Respond,
    Runtime,
    RuntimeBusy,
)
from core.session.config import AudioFormat, TurnDetection

RATE = 24_000
Kind = TypeVar("Kind")


def tone(ms: int, rate: int = RATE) -> bytes:
    """Loud pcm16."""
    wave = 0.3 * np.sin(2 * np.pi * 220 * np.arange(rate * ms // 1000) / rate)
    return (wave * 32_767).astype("<i2").tobytes()


def silence(ms: int, rate: int = RATE) -> bytes:
    """Quiet pcm16."""
    return bytes(2 * (rate * ms // 1000))


class Caller:
    """One session's client of the port. ``got`` holds everything that came for it, in order."""

    def __init__(self, runtime: Runtime, session: str = "s") -> None:
        self.runtime = runtime
        self.session = session
        self.got: list[FromRuntime] = []
        self.fed_ms = 0
        self.barriers = 0
        self._news = trio.Event()
        runtime.subscribe(session, self.hear)

    def hear(self, message: FromRuntime) -> None:
        self.got.append(message)
        self._news.set()
        self._news = trio.Event()

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in self.got if isinstance(message, kind)]

    async def until(self, done: Callable[[], bool], within_s: float = 20.0) -> None:
        with trio.fail_after(within_s):
            while not done():
                await self._news.wait()

    async def wait_for(self, kind: type[Kind], count: int = 1, within_s: float = 20.0) -> Kind:
        """The ``count``-th message of a kind."""
        await self.until(lambda: len(self.of(kind)) >= count, within_s)
        return self.of(kind)[count - 1]

    # --- what a session does ---------------------------------------------------------------------------------------

    def open(self, epoch: int = 1, turn_detection: TurnDetection | None = None) -> None:
        self.runtime.send(OpenSession(self.session, AudioFormat(), turn_detection))
        self.open_lane(epoch)

    def open_lane(self, epoch: int) -> None:
        self.runtime.send(OpenLane(self.session, epoch, "", "", ()))

    def say(self, audio: bytes, epoch: int = 1, chunk_ms: int = 20) -> None:
        step = 2 * RATE * chunk_ms // 1000
        for start in range(0, len(audio), step):
            chunk = audio[start : start + step]
            ms = len(chunk) * 1000 // (2 * RATE)
            self.runtime.send(Feed(self.session, epoch, self.fed_ms, ms, chunk))
            self.fed_ms += ms

    def ask(self, text: str, epoch: int = 1, response_id: str = "r1", max_output_tokens: int | None = None) -> None:
        turns = (HistoryTurn("user", text, "i1"),)
        self.ask_over(turns, epoch, response_id, max_output_tokens=max_output_tokens)

    def ask_over(
        self,
        history: tuple[HistoryTurn, ...],
        epoch: int = 1,
        response_id: str = "r1",
        modalities: tuple[str, ...] = ("audio",),
        max_output_tokens: int | None = None,
    ) -> None:
        self.runtime.send(Respond(self.session, epoch, response_id, "", history, modalities, max_output_tokens))

    def cut_off(self, epoch: int) -> None:
        self.runtime.send(AbortLane(self.session, epoch))

    async def barrier(self) -> None:
        """Everything that was sent before has been handled, and what it caused at once has come."""
        self.barriers += 1
        item = f"barrier{self.barriers}"
        self.runtime.send(CommitTurn(self.session, item, self.fed_ms, self.fed_ms))
        await self.until(lambda: any(heard.item_id == item for heard in self.of(Heard)))

    async def answered(self, count: int = 1) -> list[Produced]:
        """Wait for the end of the ``count``-th answer; its units."""
        ended = await self.wait_for(LaneEnded, count)
        return self.units(ended.response_id)

    def units(self, response_id: str = "r1") -> list[Produced]:
        return [unit for unit in self.of(Produced) if unit.response_id == response_id]


def without_timings(messages: list[FromRuntime]) -> list[FromRuntime]:
    """The same with no clock in it."""
    return [attrs.evolve(m, timings=()) if attrs.has(type(m)) and hasattr(m, "timings") else m for m in messages]


def flood(caller: Caller, chunk: bytes) -> int:
    """Feed until the runtime refuses; how many chunks it took."""
    for sent in range(1_000_000):
        try:
            caller.runtime.send(Feed(caller.session, 1, 0, 20, chunk))
        except RuntimeBusy:
            return sent
    raise AssertionError("the queue has no bound")
