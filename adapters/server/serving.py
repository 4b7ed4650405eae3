"""Running a server: listen first, load, serve, drain."""

from __future__ import annotations

import errno
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from adapters.server.application import Application
from adapters.server.listening import PatientListener
from adapters.server.memory import give_back
from adapters.server.metrics import Metrics
from adapters.server.service import Service
from adapters.server.settings import ServerSettings
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from core.actors.session import Ports
from core.actors.supervisor import open_supervisor
from core.ports.runtime import Runtime
from core.ports.store import Store

log = logging.getLogger("duologue.server")

BACKLOG = 256

SWITCH_S = 0.0005
"""How long a thread may keep the interpreter when another asks for it."""

COLLECT_EVERY = 10_000
"""Allocations between two looks for garbage: Python's 700 look ten times a second at what almost always lives on."""


class CannotListen(Exception):
    """The port is taken, or the host is not this machine's. The message says what to do."""


class RunningServer:
    """A server that listens. ``ready`` is set once sessions can be opened."""

    def __init__(self, application: Application, listeners: list[trio.SocketListener]) -> None:
        self.application = application
        self.ready = trio.Event()
        self._listeners = listeners

    @property
    def port(self) -> int:
        """The port that was bound (the one asked for, or the system's choice for 0)."""
        port: int = self._listeners[0].socket.getsockname()[1]
        return port

    async def drain(self) -> None:
        """SIGTERM's way out: no new session, let answers finish, send clients elsewhere."""
        self.application.draining = True
        service = self.application.service
        if service is not None:
            await service.supervisor.drain(service.settings.drain_s)


@asynccontextmanager
async def open_server(
    settings: ServerSettings,
    store: Callable[[], AbstractAsyncContextManager[Store]],
    runtime: Callable[[], AbstractAsyncContextManager[Runtime]],
    *,
    server_id: str = "",
) -> AsyncIterator[RunningServer]:
    """Listen at once (``/readyz`` says why nothing is ready), then load the model and open the store (which may make a file:
    not for a model that cannot be had), then serve for as long as the block lasts. Raises CannotListen, and what the store
    and the runtime raise; from the block, errors come in an ExceptionGroup."""
    metrics = Metrics()
    application = Application(settings, metrics)
    listeners = await _listen(settings.host, settings.port)
    server = RunningServer(application, listeners)
    name = server_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    async with trio.open_nursery() as nursery:
        patient = [PatientListener(listener, metrics.accepts_failed.inc) for listener in listeners]
        nursery.start_soon(trio.serve_listeners, application.handle, patient)
        nursery.start_soon(metrics.measure_lag)
        nursery.start_soon(application.patience.look)
        nursery.start_soon(give_back)
        async with runtime() as opened_runtime, store() as opened_store:
            ports = Ports(opened_store, opened_runtime, time.time_ns, encode_caused, metrics, settings.silent_s)
            async with open_supervisor(
                ports, server_id=name, make_projection=make_projection, sessions_max=settings.sessions_max
            ) as supervisor:
                metrics.watch_service(supervisor, opened_runtime, opened_store)
                application.service = Service(supervisor, opened_runtime, metrics, settings, application.patience)
                server.ready.set()
                yield server
        nursery.cancel_scope.cancel()


async def _listen(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=None if host in ("", "*") else host, backlog=BACKLOG)
    except OSError as error:
        cause = error.errno
        if isinstance(error.__cause__, BaseExceptionGroup):
            cause = next((e.errno for e in error.__cause__.exceptions if isinstance(e, OSError)), cause)
        if cause == errno.EADDRINUSE:
            raise CannotListen(f"port {port} is taken; choose another with --port (make serve PORT=...)") from error
        if cause == errno.EADDRNOTAVAIL:
            raise CannotListen(f"{host} is no address of this machine; choose another with --host") from error
        if isinstance(error, socket.gaierror):
            raise CannotListen(f"nobody knows the host {host!r}; choose another with --host") from error
        if cause == errno.EACCES:
            raise CannotListen(f"port {port} needs privileges; choose one above 1023 with --port") from error
        raise CannotListen(f"cannot listen on {host}:{port}: {error}") from error


def settle() -> None:
    """For a process that only serves, once everything is loaded.

    What is there now stays, so the garbage collector need not look through it again: each such look stopped every session
    for tens of ms. And threads hand the interpreter on quickly: the store's writer gives it up around each statement, and
    beside a busy event loop got it back only after the default of 5 ms, so that one commit could take 100 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, 20, 20)
    sys.setswitchinterval(SWITCH_S)


Signals = AsyncIterator[int]
ENDING = (signal.SIGTERM, signal.SIGINT)


async def end_at_signal(signals: Signals, scope: trio.CancelScope) -> None:
    """Wait for SIGTERM or SIGINT and end ``scope``: while the model loads there is nothing to drain, and what was started for
    it is let go in order. (The first process of a container would not even hear a SIGTERM that nobody waits for.) A second
    signal ends the process where it stands."""
    async for _ in signals:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)  # until the receiver of ``signals`` is closed
        scope.cancel()
        break


async def serve_until_signal(server: RunningServer, signals: Signals, on_signal: Callable[[], None]) -> None:
    """Wait for SIGTERM or SIGINT and drain; a second signal ends it at once."""
    async for _ in signals:
        break
    on_signal()
    async with trio.open_nursery() as nursery:

        async def drain() -> None:
            await server.drain()
            nursery.cancel_scope.cancel()

        nursery.start_soon(drain)
        async for _ in signals:
            log.warning("stopped before every answer had finished")
            nursery.cancel_scope.cancel()
            break
