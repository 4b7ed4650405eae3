"""The runtime port over a worker process that may die at any time, and is then started again."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from core.ports.runtime import (
    Capabilities,
    FromRuntime,
    RuntimeLost,
    RuntimeReady,
    RuntimeSink,
    RuntimeStatistics,
    ToRuntime,
)
from gpu_runtime.host.life import Ending, Life
from gpu_runtime.host.options import WorkerOptions
from gpu_runtime.host.outbound import Outbound
from gpu_runtime.host.process import WorkerProcess
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
) -> AsyncGenerator[WorkerRuntime, None]:
    """Start a worker with the plugin called ``model``, wait until it is ready, keep one alive until the block ends.

    Raises ModelUnavailable when the first worker does not come up: with the model's own words, or with how it died. A
    worker that dies later is started again for ever, since sessions wait for it. An exception from the block comes
    out in an ExceptionGroup, as from any nursery.
    """
    runtime = WorkerRuntime(model, dict(settings or {}), on_progress, options or WorkerOptions())
    failure: str | None = None
    async with trio.open_nursery() as nursery:
        failure = await nursery.start(runtime._supervise)
        if failure is None:
            try:
                yield runtime
            finally:
                await runtime._close()
                nursery.cancel_scope.cancel()
    if failure is not None:
        raise ModelUnavailable(failure)


class WorkerRuntime:
    """core.ports.runtime.Runtime on trio. Made by ``open_worker``."""

    def __init__(self, model: str, settings: dict[str, Any], on_progress: Progress, options: WorkerOptions) -> None:
        self._model = model
        self._settings = settings
        self._on_progress = on_progress
        self._options = options
        self._routes = Routes()
        self._outbound = Outbound(options)
        self._capabilities: Capabilities | None = None
        self._ready = trio.Event()
        self._life: Life | None = None
        self._restarts = 0
        self._closing = False
        self._ended = trio.Event()

    @property
    def capabilities(self) -> Capabilities | None:
        """None while no worker is up."""
        return self._capabilities

    @property
    def pid(self) -> int | None:
        """The worker's process id; None between two workers."""
        return self._life.pid if self._life is not None else None

    def subscribe(self, session: str, sink: RuntimeSink) -> None:
        """See core.ports.runtime.Runtime."""
        self._routes.subscribe(session, sink)

    def unsubscribe(self, session: str, sink: RuntimeSink) -> None:
        """See core.ports.runtime.Runtime."""
        self._routes.unsubscribe(session, sink)

    def send(self, message: ToRuntime) -> None:
        """See core.ports.runtime.Runtime."""
        if self._capabilities is not None:
            self._outbound.put(message)

    def statistics(self) -> RuntimeStatistics:
        """Now."""
        return RuntimeStatistics(
            up=self._capabilities is not None,
            restarts=self._restarts,
            sessions=len(self._routes),
            queue_items=self._outbound.queued_items,
            queue_bytes=self._outbound.queued_bytes,
            model=self._life.figures if self._life is not None else None,
        )

    async def wait_ready(self) -> None:
        """Return at once when a worker is up, else as soon as the next one is."""
        while self._capabilities is None:
            await self._ready.wait()

    def kill_worker(self) -> None:
        """SIGKILL the worker, as the kernel might; another one is started."""
        if self._life is not None:
            self._life.kill()

    # --- one life after another ------------------------------------------------------------------------------------

    async def _supervise(self, task_status: trio.TaskStatus[str | None]) -> None:
        """Report once: None when the first worker is ready, or why it did not come up (and then return)."""
        deaths = 0
        reported = False

        def on_message(message: FromRuntime) -> None:
            nonlocal reported
            if isinstance(message, RuntimeReady):
                self._come_up(message)
                if not reported:
                    reported = True
                    task_status.started(None)
            self._routes.deliver(message)

        while True:
            ending = await self._live(on_message)
            self._go_down(ending)
            if not reported:  # said once, by whoever asked for the model
                task_status.started(ending.unavailable or self._why_not_up(ending))
            elif not self._closing:
                log.warning("worker for %s is gone: %s", self._model, ending.unavailable or ending.reason)
            if not reported or self._closing:
                break
            deaths = 0 if ending.ready_s >= self._options.healthy_after_s else deaths
            delays_s = self._options.restart_delays_s
            await trio.sleep(delays_s[min(deaths, len(delays_s) - 1)])
            deaths += 1
            self._restarts += 1
        self._ended.set()

    async def _live(self, on_message: RuntimeSink) -> Ending:
        try:
            process = WorkerProcess.start(self._model)
        except OSError as error:
            return Ending(f"no process could be started: {error.strerror}")
        self._life = Life(process, self._outbound, self._options, on_message, self._on_progress)
        try:
            return await self._life.run(self._settings)
        finally:
            self._life = None

    def _why_not_up(self, ending: Ending) -> str:
        words = f"; the last it said: {ending.last_words}" if ending.last_words else ""
        return f"the worker for {self._model!r} did not come up: {ending.reason}{words}"

    def _come_up(self, message: RuntimeReady) -> None:
        self._capabilities = message.capabilities
        self._ready.set()

    def _go_down(self, ending: Ending) -> None:
        """What was queued was meant for the dead. Sinks are told only if they had a worker to lose,
        and not when it is we who let it go."""
        was_up = self._capabilities is not None
        self._capabilities = None
        if was_up:
            self._ready = trio.Event()
        self._outbound.clear()
        if was_up and not self._closing:
            self._routes.deliver(RuntimeLost(ending.reason))

    async def _close(self) -> None:
        """Let the worker go, and give it the time that the options say. What is left is killed by the caller's cancel."""
        self._closing = True
        if self._life is None:
            return
        with trio.move_on_after(self._options.shutdown_timeout_s, shield=True):
            await self._life.let_go()
            await self._ended.wait()
