"""The runtime port over workers that may die at any time, and are then started again.

Each session is on one worker, and hears of that one's end and of no other's. The workers are processes of this machine,
or anything else that can be had as a ``Link``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from core.ports.runtime import (
    Capabilities,
    CloseSession,
    FromRuntime,
    OpenSession,
    RuntimeLost,
    RuntimeReady,
    RuntimeSink,
    RuntimeStatistics,
    ToRuntime,
)
from gpu_runtime.host.figures import together
from gpu_runtime.host.keeper import Keeper
from gpu_runtime.host.link import Starter
from gpu_runtime.host.options import WorkerOptions
from gpu_runtime.host.placement import Placement
from gpu_runtime.host.process import process_starter
from gpu_runtime.host.routes import Routes
from gpu_runtime.plugin import ModelUnavailable, Progress

log = logging.getLogger(__name__)


def _no_progress(stage: str, fraction: float) -> None:
    """For callers who do not watch."""


@asynccontextmanager
async def open_worker(
    model: str,
    settings: Mapping[str, Any] | None = None,
    on_progress: Progress = _no_progress,
    options: WorkerOptions | None = None,
    workers: int = 1,
) -> AsyncGenerator[WorkerRuntime, None]:
    """``open_workers`` over so many processes of this machine."""
    starters = [process_starter(model)] * workers
    async with open_workers(model, starters, settings, on_progress, options) as runtime:
        yield runtime


@asynccontextmanager
async def open_workers(
    model: str,
    starters: Sequence[Starter],
    settings: Mapping[str, Any] | None = None,
    on_progress: Progress = _no_progress,
    options: WorkerOptions | None = None,
) -> AsyncGenerator[WorkerRuntime, None]:
    """Start a worker by each of ``starters``, wait until the first is ready, keep them alive until the block ends.

    Raises ModelUnavailable when none comes up: with the first failure in the model's own words, or with how it died. A
    worker that dies later is started again for ever, since sessions wait for it. An exception from the block comes
    out in an ExceptionGroup, as from any nursery.
    """
    runtime = WorkerRuntime(model, starters, on_progress, options or WorkerOptions())
    failure: str | None = None
    async with trio.open_nursery() as nursery:
        failure = await nursery.start(runtime._run, dict(settings or {}))
        if failure is None:
            try:
                yield runtime
            finally:
                await runtime._close()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise ModelUnavailable(failure)


class WorkerRuntime:
    """core.ports.runtime.Runtime on trio. Made by ``open_workers``."""

    def __init__(self, model: str, starters: Sequence[Starter], on_progress: Progress, options: WorkerOptions) -> None:
        self._options = options
        self._routes = Routes()
        self._placement = Placement(len(starters))
        self._open: set[str] = set()
        """Sessions that their worker knows: they keep their place until they are closed, whether or not somebody listens."""
        progress = _Together(on_progress, len(starters))
        self._keepers = [
            Keeper(model, start, options, partial(self._hear, number), partial(progress.show, number))
            for number, start in enumerate(starters)
        ]
        self._ready = trio.Event()
        self._expecting = trio.Event()
        """Sessions wait for a worker although another has room: not for long."""
        self._opened = False

    @property
    def capabilities(self) -> Capabilities | None:
        """Of all workers that are up, together; None while none is."""
        up = [keeper.capabilities for keeper in self._keepers if keeper.capabilities is not None]
        return attrs.evolve(up[0], sessions_max=sum(one.sessions_max for one in up)) if up else None

    def capabilities_of(self, session: str) -> Capabilities | None:
        """See core.ports.runtime.Runtime."""
        worker = self._placement.worker_of(session)
        return None if worker is None else self._keepers[worker].capabilities

    @property
    def pid(self) -> int | None:
        """The first worker's process id; None between two workers."""
        return self._keepers[0].pid

    @property
    def pids(self) -> tuple[int | None, ...]:
        """Each worker's."""
        return tuple(keeper.pid for keeper in self._keepers)

    def subscribe(self, session: str, sink: RuntimeSink) -> None:
        """See core.ports.runtime.Runtime."""
        self._routes.subscribe(session, sink)
        self._placement.add(session)

    def unsubscribe(self, session: str, sink: RuntimeSink) -> None:
        """See core.ports.runtime.Runtime."""
        self._routes.unsubscribe(session, sink)
        self._let_go(session)

    def send(self, message: ToRuntime) -> None:
        """See core.ports.runtime.Runtime."""
        worker = self._placement.worker_of(message.session)
        if worker is None:
            return
        self._keepers[worker].outbound.put(message)
        match message:
            case OpenSession():
                self._open.add(message.session)
            case CloseSession():
                self._open.discard(message.session)
                self._let_go(message.session)

    def worker_of(self, session: str) -> int | None:
        """The number of the worker on which the session is; None: it has none now."""
        return self._placement.worker_of(session)

    def statistics(self) -> RuntimeStatistics:
        """Now."""
        up = sum(keeper.capabilities is not None for keeper in self._keepers)
        return RuntimeStatistics(
            up=up > 0,
            restarts=sum(keeper.restarts for keeper in self._keepers),
            sessions=len(self._routes),
            queue_items=sum(keeper.outbound.queued_items for keeper in self._keepers),
            queue_bytes=sum(keeper.outbound.queued_bytes for keeper in self._keepers),
            workers=len(self._keepers),
            workers_up=up,
            sessions_waiting=self._placement.waiting,
            model=together(keeper.figures for keeper in self._keepers if keeper.figures is not None),
        )

    async def wait_ready(self, workers: int = 1) -> None:
        """Return at once when so many workers are up, else as soon as they are."""
        while sum(keeper.capabilities is not None for keeper in self._keepers) < workers:
            await self._ready.wait()

    def kill_worker(self, worker: int = 0) -> None:
        """SIGKILL a worker, as the kernel might; another one is started."""
        self._keepers[worker].kill()

    # --- the workers -----------------------------------------------------------------------------------------------

    async def _run(self, settings: dict[str, Any], task_status: trio.TaskStatus[str | None]) -> None:
        """Report once: None when the first worker is ready, or why none came up."""
        failures: dict[int, str] = {}
        failed = trio.Event()

        def on_failure(number: int, text: str) -> None:
            """Said once: to whoever asked for the model if none comes up, else in the log."""
            if number in failures or self._opened:
                log.warning("%s", text)
            failures.setdefault(number, text)
            if len(failures) == len(self._keepers):
                failed.set()

        async def report() -> None:
            async with trio.open_nursery() as waiting:
                waiting.start_soon(_then_cancel, self.wait_ready, waiting.cancel_scope)
                waiting.start_soon(_then_cancel, failed.wait, waiting.cancel_scope)
            self._opened = self.capabilities is not None
            for text in failures.values() if self._opened else ():
                log.warning("%s", text)
            task_status.started(None if self._opened else next(iter(failures.values())))

        async with trio.open_nursery() as nursery:
            for number, keeper in enumerate(self._keepers):
                nursery.start_soon(keeper.run, settings, partial(on_failure, number))
            nursery.start_soon(report)
            nursery.start_soon(self._expect)

    async def _expect(self) -> None:
        while True:
            await self._expecting.wait()
            await trio.sleep(self._options.spread_s)
            self._expecting = trio.Event()
            self._placement.expect_no_more()
            self._settle()

    async def _close(self) -> None:
        """Let the workers go, and give them the time that the options say. What is left is killed by the caller's
        cancel."""
        with trio.move_on_after(self._options.shutdown_timeout_s, shield=True):
            async with trio.open_nursery() as nursery:
                for keeper in self._keepers:
                    nursery.start_soon(keeper.close)

    def _hear(self, worker: int, message: FromRuntime) -> None:
        match message:
            case RuntimeReady():
                self._placement.gain(worker, message.capabilities.sessions_max)
                self._ready.set()
                self._ready = trio.Event()
                self._settle()
            case RuntimeLost():
                self._lose(worker, message)
            case _:  # a worker that the session is not on any more has nothing to say to it
                if self._placement.worker_of(message.session) == worker:
                    self._routes.deliver(message)

    def _lose(self, worker: int, message: RuntimeLost) -> None:
        """Each hears of its loss before it may hear of a new place."""
        lost = self._placement.lose(worker)
        self._open.difference_update(lost)
        for session in lost:
            self._routes.tell(session, message)
        self._placement.wait([session for session in lost if session in self._routes])
        self._settle()

    def _let_go(self, session: str) -> None:
        """Give its place to others, if nobody listens for it and its worker knows nothing of it."""
        if session not in self._routes and session not in self._open:
            self._placement.remove(session)
            self._settle()

    def _settle(self) -> None:
        """Give those who wait the room that there is."""
        for session, worker in self._placement.place_waiting():
            capabilities = self._keepers[worker].capabilities
            assert capabilities is not None
            self._routes.tell(session, RuntimeReady(capabilities))
        if self._placement.expecting:
            self._expecting.set()


async def _then_cancel(wait: Callable[[], Any], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


class _Together:
    """The progress of several workers as one."""

    def __init__(self, show: Progress, workers: int) -> None:
        self._show = show
        self._fractions = [0.0] * workers

    def show(self, worker: int, stage: str, fraction: float) -> None:
        """``worker`` has come so far."""
        self._fractions[worker] = fraction
        self._show(stage, sum(self._fractions) / len(self._fractions))
