"""Keeps one worker alive: one life after another, with growing pauses between those that end early."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import trio

from core.ports.runtime import Capabilities, FromRuntime, ModelStatistics, RuntimeLost, RuntimeReady
from gpu_runtime.host.life import Ending, Life
from gpu_runtime.host.link import NoWorker, Starter
from gpu_runtime.host.options import WorkerOptions
from gpu_runtime.host.outbound import Outbound
from gpu_runtime.plugin import Progress

log = logging.getLogger(__name__)


class Keeper:
    """``on_message`` hears what the worker says to sessions, RuntimeReady when one is up, RuntimeLost when it is gone."""

    def __init__(
        self,
        model: str,
        start: Starter,
        options: WorkerOptions,
        on_message: Callable[[FromRuntime], None],
        on_progress: Progress,
    ) -> None:
        self._model = model
        self._start = start
        self._options = options
        self._on_message = on_message
        self._on_progress = on_progress
        self.outbound = Outbound(options)
        self.capabilities: Capabilities | None = None
        """None while no worker is up."""
        self.restarts = 0
        self._life: Life | None = None
        self._closing = False
        self._ended = trio.Event()

    @property
    def pid(self) -> int | None:
        """The worker's process id; None between two workers."""
        return self._life.pid if self._life is not None else None

    @property
    def figures(self) -> ModelStatistics | None:
        """What its model said last of its work; None: nothing yet."""
        return self._life.figures if self._life is not None else None

    def kill(self) -> None:
        """As from outside; another one is started."""
        if self._life is not None:
            self._life.kill()

    async def run(self, settings: Mapping[str, Any], on_failure: Callable[[str], None]) -> None:
        """Until ``close``. ``on_failure`` gets why a worker did not come up, in words for a person."""
        deaths = 0
        while not self._closing:
            ending = await self._live(dict(settings))
            self._go_down(ending)
            if self._closing:
                break
            if not ending.ready_s:
                on_failure(ending.unavailable or self._why_not_up(ending))
                deaths = max(deaths, 1)  # it will hardly come up the very next moment
            deaths = 0 if ending.ready_s >= self._options.healthy_after_s else deaths
            delays_s = self._options.restart_delays_s
            await trio.sleep(delays_s[min(deaths, len(delays_s) - 1)])
            deaths += 1
            self.restarts += 1
        self._ended.set()

    async def close(self) -> None:
        """Let the worker go and wait for its end; the caller sets the limit, and cancels ``run`` after it."""
        self._closing = True
        if self._life is not None:
            await self._life.let_go()
            await self._ended.wait()

    async def _live(self, settings: dict[str, Any]) -> Ending:
        try:
            link = await self._start(self._on_progress)
        except NoWorker as error:
            return Ending(str(error))
        self._life = Life(link, self.outbound, self._options, self._hear, self._on_progress)
        try:
            return await self._life.run(settings)
        finally:
            self._life = None

    def _hear(self, message: FromRuntime) -> None:
        if isinstance(message, RuntimeReady):
            self.capabilities = message.capabilities
        self._on_message(message)

    def _go_down(self, ending: Ending) -> None:
        """What was queued was meant for the dead. Sessions are told only if they had a worker to lose,
        and not when it is we who let it go."""
        was_up = self.capabilities is not None
        self.capabilities = None
        self.outbound.clear()
        if self._closing:
            return
        if was_up:
            log.warning("worker for %s is gone: %s", self._model, ending.reason)
            self._on_message(RuntimeLost(ending.reason))

    def _why_not_up(self, ending: Ending) -> str:
        words = f"; the last it said: {ending.last_words}" if ending.last_words else ""
        return f"the worker for {self._model!r} did not come up: {ending.reason}{words}"
