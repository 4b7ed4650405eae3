"""The runtime port over a step machine in the caller's own event loop: no thread, no process, the caller's clock.

With ``trio.testing.MockClock`` a whole session is a deterministic simulation. It behaves like a worker where a session
can tell: messages are taken in order and answered later, never from within ``send``; words travel for ``latency_s``, so
an answer may still arrive that was aborted meanwhile; a machine's faults are suffered as a host would notice them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from core.ports.runtime import (
    Capabilities,
    Feed,
    FromRuntime,
    Part,
    RuntimeBusy,
    RuntimeLost,
    RuntimeReady,
    RuntimeSink,
    RuntimeStatistics,
    ToRuntime,
)
from gpu_runtime.host.routes import Routes
from gpu_runtime.stepped import Fault, Said, SteppedModel

QUEUE_ITEMS_MAX = 8_192
QUEUE_BYTES_MAX = 16 * 1024 * 1024


@asynccontextmanager
async def open_inline(
    make: Callable[[], SteppedModel],
    latency_s: float = 0.0,
    restart_s: float = 0.1,
    stall_timeout_s: float = 15.0,
) -> AsyncGenerator[InlineRuntime, None]:
    """Host what ``make`` makes, anew after each death. ``latency_s`` passes between a word's saying and its delivery,
    ``restart_s`` between a death and the next RuntimeReady. An exception from the block comes in an ExceptionGroup."""
    runtime = InlineRuntime(make, latency_s, restart_s, stall_timeout_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime._run)
        yield runtime
        nursery.cancel_scope.cancel()


class InlineRuntime:
    """core.ports.runtime.Runtime in one task. Made by ``open_inline``."""

    def __init__(
        self, make: Callable[[], SteppedModel], latency_s: float, restart_s: float, stall_timeout_s: float
    ) -> None:
        self._make = make
        self._latency_ns = round(latency_s * 1e9)
        self._restart_s = restart_s
        self._stall_timeout_s = stall_timeout_s
        self._routes = Routes()
        self._machine: SteppedModel | None = make()
        self._inbox: deque[ToRuntime] = deque()
        self._inbox_bytes = 0
        self._on_its_way: deque[tuple[int, FromRuntime]] = deque()
        self._dead: str | None = None
        self._stalled_until_ns: int | None = None
        self._recovers = False
        self._restarts = 0
        self._wake = trio.Event()
        self._ready = trio.Event()
        self._ready.set()

    @property
    def capabilities(self) -> Capabilities | None:
        """None between a death and the next machine."""
        return self._machine.capabilities if self._machine is not None else None

    def capabilities_of(self, session: str) -> Capabilities | None:
        """See core.ports.runtime.Runtime: one machine holds all."""
        return self.capabilities if session in self._routes else None

    def subscribe(self, session: str, sink: RuntimeSink) -> None:
        """See core.ports.runtime.Runtime."""
        self._routes.subscribe(session, sink)

    def unsubscribe(self, session: str, sink: RuntimeSink) -> None:
        """See core.ports.runtime.Runtime."""
        self._routes.unsubscribe(session, sink)

    def send(self, message: ToRuntime) -> None:
        """See core.ports.runtime.Runtime."""
        if self._machine is None:
            return
        size = _size(message)
        if len(self._inbox) >= QUEUE_ITEMS_MAX or self._inbox_bytes + size > QUEUE_BYTES_MAX:
            raise RuntimeBusy(f"{len(self._inbox)} messages of {self._inbox_bytes} bytes wait for the machine")
        self._inbox.append(message)
        self._inbox_bytes += size
        self._wake.set()

    def statistics(self) -> RuntimeStatistics:
        """Now."""
        return RuntimeStatistics(
            up=self._machine is not None,
            restarts=self._restarts,
            sessions=len(self._routes),
            queue_items=len(self._inbox),
            queue_bytes=self._inbox_bytes,
            model=self._machine.statistics() if self._machine is not None else None,
            workers_up=int(self._machine is not None),
        )

    async def wait_ready(self) -> None:
        """Return at once when a machine is up, else as soon as the next one is."""
        while self._machine is None:
            await self._ready.wait()

    def kill_worker(self, reason: str = "killed by SIGKILL") -> None:
        """The machine is gone, with all that is in it; what it said before still arrives, then sinks hear of the loss."""
        if self._machine is not None and self._dead is None:
            self._dead = reason
            self._wake.set()

    def stall_worker(self, for_s: float) -> None:
        """The machine takes nothing and says nothing for so long. Beyond the host's patience it is taken for dead."""
        if self._machine is not None and self._alive:
            self._recovers = for_s < self._stall_timeout_s
            self._stalled_until_ns = _now_ns() + round(min(for_s, self._stall_timeout_s) * 1e9)
            self._wake.set()

    # --- the task --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            reason = await self._serve()
            self._machine = None
            self._ready = trio.Event()
            self._inbox.clear()
            self._inbox_bytes = 0
            self._routes.deliver(RuntimeLost(reason))
            await trio.sleep(self._restart_s)
            self._restarts += 1
            self._machine = self._make()
            self._dead, self._stalled_until_ns, self._recovers = None, None, False
            self._ready.set()
            self._routes.deliver(RuntimeReady(self._machine.capabilities))

    async def _serve(self) -> str:
        """Until the machine is lost, and what it said before has arrived; the reason."""
        now_ns = _now_ns()
        while True:
            self._wake = trio.Event()
            self._step(now_ns)
            while self._on_its_way and self._on_its_way[0][0] <= now_ns:
                self._routes.deliver(self._on_its_way.popleft()[1])
            if self._dead is not None and not self._on_its_way:
                return self._dead
            now_ns = await self._until_next(now_ns)

    def _step(self, now_ns: int) -> None:
        machine = self._machine
        assert machine is not None
        if self._recovers and self._stalled_until_ns is not None and now_ns >= self._stalled_until_ns:
            self._recovers, self._stalled_until_ns = False, None
        while self._inbox and self._alive:
            message = self._inbox.popleft()
            self._inbox_bytes -= _size(message)
            self._say(machine.handle(message, now_ns), now_ns)
        if self._alive:
            self._say(machine.tick(now_ns), now_ns)
        if self._stalled_until_ns is not None and now_ns >= self._stalled_until_ns and self._dead is None:
            self._dead = f"stalled: no sign of life for {self._stall_timeout_s:g} s"

    @property
    def _alive(self) -> bool:
        return self._dead is None and self._stalled_until_ns is None

    def _say(self, said: Sequence[Said], now_ns: int) -> None:
        for word in said:
            if word is Fault.DIE:
                self._dead = "killed by SIGKILL"
                return
            if word is Fault.STALL:
                self._stalled_until_ns = now_ns + round(self._stall_timeout_s * 1e9)
                return
            assert not isinstance(word, Fault)
            self._on_its_way.append((now_ns + self._latency_ns, word))

    async def _until_next(self, now_ns: int) -> int:
        """Wait for a message or the next instant; the time then."""
        instants = [self._on_its_way[0][0]] if self._on_its_way else []
        if self._stalled_until_ns is not None:
            instants.append(self._stalled_until_ns)
        if self._alive and self._machine is not None and (due_ns := self._machine.due_ns()) is not None:
            instants.append(due_ns)
        if not instants:
            await self._wake.wait()
            return max(now_ns, _now_ns())
        with trio.move_on_at(min(instants) / 1e9) as waiting:
            await self._wake.wait()
        # The clock is a float: without the instant itself, it may read a nanosecond less, and we would wait for ever.
        return max(now_ns, _now_ns(), min(instants) if waiting.cancelled_caught else 0)


def _size(message: ToRuntime) -> int:
    match message:
        case Feed():
            return len(message.audio)
        case Part():
            return len(message.data) + len(message.text)
        case _:
            return 0


def _now_ns() -> int:
    """The event loop's clock."""
    return round(trio.current_time() * 1e9)
