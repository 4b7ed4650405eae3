"""How long appends take: many sessions that write to one store as their actors do, at a steady rate.

Each session is heard and speaks all the time. Twenty batches, over and over, each of one record: ten chunks of the user's
audio and eight units of the answer's (200 ms of 24 kHz, 9,600 bytes each, no two alike), an acknowledgement, an answer's
end. With the audio that is 86 kB a second in each session, so the disk is measured too; without it, the log alone. Which
of them close a group and which may wait for others is decided where the actors decide it.

A latency counts from the instant at which the batch was due, so that a load that comes late is not a store that is quick.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import attrs
import trio

from core.actors.journal import PATIENT, batch_of
from core.ports.store import Store, StoreBusy, StoreError
from core.session import events as e
from core.session.config import SessionConfig
from core.session.digest import body_digest
from core.session.state import SessionState

PER_SECOND = 10.0
CHUNK_MS = 200
CHUNK_BYTES = 9_600
CYCLE = 20
TICK_S = 0.001
"""The load wakes up at most so often, so latencies are too long by up to that."""
RETRY_S = 0.005


@attrs.frozen
class AppendLatency:
    """``waited_ms``: of batches whose durability a client waits for, sorted; ``patient_ms``: of those for which nobody does.
    ``reached``: the part of the asked rate that was written. ``cpu_us``: of the whole process for each batch, making and
    pacing the load included."""

    sessions: int
    audio: bool
    waited_ms: list[float]
    patient_ms: list[float]
    reached: float
    cpu_us: float
    commits: int

    @property
    def batches(self) -> int:
        """All of them."""
        return len(self.waited_ms) + len(self.patient_ms)


async def measure_appends(
    store: Store, sessions: int, seconds: float, audio: bool = True, seed: int = 0
) -> AppendLatency:
    """Ten batches a second in each of ``sessions``, at phases that ``seed`` draws; ``audio``: with the bodies that they
    name. Raises what the store raises."""
    load = _Load(store, audio, random.Random(seed))
    for number in range(sessions):
        await load.open(f"bench_{time.time_ns()}_{number}")
    commits, cpu_s = store.statistics().commits, time.process_time()
    elapsed_s = await load.run(seconds)
    cpu_s = time.process_time() - cpu_s
    batches = len(load.waited_ms) + len(load.patient_ms)
    return AppendLatency(
        sessions,
        audio,
        sorted(load.waited_ms),
        sorted(load.patient_ms),
        min(1.0, batches / elapsed_s / (sessions * PER_SECOND)),
        cpu_s / batches * 1e6,
        store.statistics().commits - commits,
    )


@attrs.define
class _Writer:
    """One session: where its log stands, and where in the cycle it began."""

    state: SessionState
    phase: int
    batches: int = 0

    def event(self, digest: str) -> e.Event:
        """The next one of the cycle."""
        place, at_ms = (self.phase + self.batches) % CYCLE, self.batches * CHUNK_MS
        samples = CHUNK_BYTES // 2
        if place % 2 == 0:
            return e.Append("audio", digest, CHUNK_BYTES, at_ms, CHUNK_MS, samples, event_id=f"event_{self.batches}")
        if place == 1:
            return e.PlaybackAck("resp_bench_1", at_ms, at_ms, at_ms)
        if place == 3:
            return e.ResponseEnded("resp_bench_1", "completed", usage=(812, 164))
        unit = self.batches
        return e.Output(
            "resp_bench_1", unit, "speak", " some words", digest, CHUNK_BYTES, 24_000, samples, at_ms, CHUNK_MS
        )


@attrs.define
class _Load:
    store: Store
    audio: bool
    chance: random.Random
    writers: list[_Writer] = attrs.field(factory=list)
    waited_ms: list[float] = attrs.field(factory=list)
    patient_ms: list[float] = attrs.field(factory=list)
    _queued: int = 0
    _noise: bytes = b""

    async def open(self, session: str) -> None:
        """One more session."""
        opened = e.SessionOpened(session, "bench", 1, SessionConfig())
        owned = await self.store.create(session, "bench", opened, time.time_ns())
        state = SessionState(session_id=session, position=owned.position, term=owned.term)
        self.writers.append(_Writer(state, self.chance.randrange(CYCLE)))

    async def run(self, seconds: float) -> float:
        """Each session once in each round, always in the same order and so at its own steady pace. Returns when all is
        answered; the time that it took, in s."""
        self._noise = self.chance.randbytes(CHUNK_BYTES - 8)
        phases_s = sorted(self.chance.uniform(0, 1 / PER_SECOND) for _ in self.writers)
        start = trio.current_time()
        for number in range(round(seconds * PER_SECOND)):
            for writer, phase_s in zip(self.writers, phases_s, strict=True):
                due = start + number / PER_SECOND + phase_s
                if due > trio.current_time():
                    await trio.sleep_until(max(due, trio.current_time() + TICK_S))
                await self._append(writer, due)
        while self._queued:
            await trio.sleep(TICK_S)
        return max(seconds, trio.current_time() - start)

    async def _append(self, writer: _Writer, due: float) -> None:
        self._queued += 1
        data = time.monotonic_ns().to_bytes(8, "big") + self._noise
        digest = body_digest(data)
        record = e.Record(writer.state.position + 1, 1, time.time_ns(), writer.event(digest))
        batch = batch_of(writer.state, writer.state.term, (record,), b"", {digest: data} if self.audio else {})
        latencies_ms = self.patient_ms if isinstance(record.event, PATIENT) else self.waited_ms
        while True:
            try:
                self.store.append_nowait(batch, self._answer(due, latencies_ms))
                break
            except StoreBusy:  # then the load comes late, and its latencies say so
                await trio.sleep(RETRY_S)
        writer.state.position += 1
        writer.batches += 1

    def _answer(self, due: float, latencies_ms: list[float]) -> Callable[[StoreError | None], None]:
        def done(error: StoreError | None) -> None:
            self._queued -= 1
            if error is not None:
                raise error
            latencies_ms.append((trio.current_time() - due) * 1e3)

        return done
