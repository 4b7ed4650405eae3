"""How long appends take: many sessions that each append at a steady rate, as live ones do. For benchmarks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import attrs
import trio

from core.ports.store import Batch, Body, Owned, Store, StoreError
from core.session.config import SessionConfig
from core.session.digest import CHAIN_START, body_digest
from core.session.events import Append, InputCleared, Record, SessionOpened


@attrs.frozen
class AppendLatency:
    """Latencies in ms from append_nowait to its answer; CPU in us of the whole process for each batch, pacing
    included."""

    sessions: int
    batches: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_us: float
    commits: int


async def measure_appends(
    store: Store, sessions: int, seconds: float, per_second: float = 10.0, body_bytes: int = 0, urgent: bool = False
) -> AppendLatency:
    """Run ``sessions`` writers for ``seconds``, each appending ``per_second`` batches of one record with a fresh body
    of ``body_bytes`` (0: none). Raises what the store raises."""
    owners = [await _create(store, f"bench_{time.time_ns()}_{number}") for number in range(sessions)]
    latencies_ms: list[float] = []
    commits, cpu_s = store.statistics().commits, time.process_time()
    async with trio.open_nursery() as nursery:
        for number, owned in enumerate(owners):
            offset_s = number / sessions / per_second
            writer = _Writer(store, owned, body_bytes, urgent, latencies_ms.append)
            nursery.start_soon(writer.run, offset_s, 1 / per_second, seconds)
    cpu_s = time.process_time() - cpu_s
    latencies_ms.sort()
    count = len(latencies_ms)
    return AppendLatency(
        sessions=sessions,
        batches=count,
        p50_ms=latencies_ms[count // 2],
        p99_ms=latencies_ms[count * 99 // 100],
        max_ms=latencies_ms[-1],
        cpu_us=cpu_s / count * 1e6,
        commits=store.statistics().commits - commits,
    )


async def _create(store: Store, session: str) -> Owned:
    opened = SessionOpened(session, "bench", 1, SessionConfig())
    return await store.create(session, "bench", opened, time.time_ns())


@attrs.define
class _Writer:
    store: Store
    owned: Owned
    body_bytes: int
    urgent: bool
    note_ms: Callable[[float], None]
    waiting: int = 0

    async def run(self, offset_s: float, interval_s: float, seconds: float) -> None:
        """Append at fixed instants, whatever the answers take; end when all are answered."""
        start = trio.current_time() + offset_s
        for number in range(int(seconds / interval_s)):
            await trio.sleep_until(start + number * interval_s)
            self._append(number)
        while self.waiting:
            await trio.sleep(0.01)

    def _append(self, number: int) -> None:
        position = self.owned.position + number
        bodies: tuple[Body, ...] = ()
        event: Append | InputCleared = InputCleared()
        if self.body_bytes:
            data = os.urandom(self.body_bytes)
            bodies = (Body(body_digest(data), data),)
            event = Append("audio", bodies[0].digest, len(data), number * 100, 100)
        record = Record(position=position + 1, epoch=1, at_ns=time.time_ns(), event=event)
        batch = Batch(
            self.owned.session, self.owned.term, str(number), position, (record,), CHAIN_START, bodies, self.urgent
        )
        queued_at = time.monotonic()

        def done(error: StoreError | None) -> None:
            self.waiting -= 1
            if error is not None:
                raise error
            self.note_ms((time.monotonic() - queued_at) * 1e3)

        self.waiting += 1
        self.store.append_nowait(batch, done)
