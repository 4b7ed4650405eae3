"""The worker's life: load the model, say that it is ready, then take messages until the host lets go.

The main thread reads the socket and calls ``model.handle``; one thread writes (``writer.py``); all other threads are the
model's own. The host is the only judge of this process: whatever goes wrong here ends it, and the host starts another.

The process never outlives its host. It ends at the end of the socket, and where the main thread cannot see that (it may
be inside native code for seconds) the kernel kills it as soon as the host is gone.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
from types import TracebackType

from core.ports.runtime import RuntimeReady
from gpu_runtime.discovery import find_loader
from gpu_runtime.faults import tell_fault
from gpu_runtime.plugin import Model, ModelUnavailable
from gpu_runtime.protocol import (
    TO_WORKER_CODEC,
    Figures,
    FrameBuffer,
    Load,
    Ping,
    Pong,
    Progress,
    ToWorker,
    Unavailable,
)
from gpu_runtime.worker.writer import Writer

READ_BYTES = 256 * 1024
COLLECT_EVERY = 10_000
"""New objects more than freed ones."""

EXIT_UNAVAILABLE = 3
EXIT_DIED = 70
_PR_SET_PDEATHSIG = 1


def serve(model_name: str, fd: int) -> int:
    """Be a worker's process: host the model called ``model_name`` on the socket ``fd``. The exit status."""
    _prepare_process()
    return host_model(model_name, socket.socket(fileno=fd))


def host_model(model_name: str, connection: socket.socket) -> int:
    """A worker's whole life, in the process of whoever calls. The exit status: 0 when the host let go."""
    connection.set_inheritable(False)  # a model's own children must not keep the host from seeing our end
    writer = Writer(connection)
    inbound = _Inbound(connection)
    first = inbound.next()
    if not isinstance(first, Load):
        return 0 if first is None else EXIT_DIED
    try:
        loader = find_loader(model_name)
        model = loader(first.settings, writer.put, lambda stage, done: writer.put(Progress(stage, done)))
    except ModelUnavailable as error:
        writer.put(Unavailable(str(error)))
        writer.close()
        return EXIT_UNAVAILABLE
    keep_what_is_loaded()
    writer.put(RuntimeReady(model.capabilities))
    _take_messages(inbound, model, writer)
    model.close()
    writer.close()
    return 0


def keep_what_is_loaded() -> None:
    """What a model's packages have made by now stays, so the garbage collector need not look through it again. With vLLM
    each look took half a second, three times a minute, and every session's units waited for it. What sessions add is mostly
    freed without the collector; to look through that, with 128 lanes, took 70 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, 20, 20)


def _take_messages(inbound: _Inbound, model: Model, writer: Writer) -> None:
    while (message := inbound.next()) is not None:
        if isinstance(message, Ping):
            writer.put_first(Pong(message.number))
            writer.put_first(Figures(model.statistics()))
        elif not isinstance(message, Load):
            model.handle(message)


class _Inbound:
    """The host's messages, one after another."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = FrameBuffer()
        self._payloads = self._frames.feed(b"")

    def next(self) -> ToWorker | None:
        """Wait for a message; None when the host let go. Raises ProtocolError."""
        while True:
            payload = next(self._payloads, None)
            if payload is not None:
                return TO_WORKER_CODEC.decode(payload)
            try:
                data = self._connection.recv(READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                self._frames.end()
                return None
            self._payloads = self._frames.feed(data)


def fail_loudly() -> None:
    """Whatever goes wrong in a thread of this process ends it, and says why."""
    faulthandler.enable()
    sys.excepthook = _died
    threading.excepthook = lambda died: _died(died.exc_type, died.exc_value or died.exc_type(), died.exc_traceback)


def _prepare_process() -> None:
    """Die with the host and no sooner, and let nothing that goes wrong go unseen.

    A service manager sends SIGTERM to all processes of a service at once, but the host needs us while it drains. A
    handler that does nothing, and not SIG_IGN, because a model's own children would inherit that.
    """
    fail_loudly()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _died(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say why, and end at once, whatever threads a model may have left. A model that lost a thread is no model either:
    better a dead worker, which is noticed, than one that never answers."""
    tell_fault(error)
    sys.__excepthook__(kind, error, trace)
    sys.stderr.flush()
    os._exit(EXIT_DIED)
