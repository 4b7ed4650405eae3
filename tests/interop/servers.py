"""A real server on a real port, in a thread of its own, for clients that bring their own event loop."""

from __future__ import annotations

import queue
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import trio

from adapters.server.serving import open_server
from adapters.server.settings import ServerSettings
from core.actors.supervisor import Supervisor
from gpu_runtime.host.inline import open_inline
from gpu_runtime.models.scripted import machine
from store.opening import open_store

LEFT_S = 15.0


@attrs.frozen
class Served:
    """A server that runs: its address, and its sessions as they are (read only, from another thread)."""

    port: int
    supervisor: Supervisor

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def is_left(self) -> bool:
        """Whether no session is left, within a moment: every client has closed its own."""
        until = time.monotonic() + LEFT_S
        while self.supervisor.sessions and time.monotonic() < until:
            time.sleep(0.05)
        return not self.supervisor.sessions

    def figure(self, name: str) -> float:
        """A figure of the server's metrics, with its labels; 0 when it is not there yet."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)


@contextmanager
def served(settings: ServerSettings | None = None, **script: Any) -> Iterator[Served]:
    """The scripted model behind the server's own front, for as long as the block lasts."""
    answers: queue.Queue[Served | BaseException] = queue.Queue()
    stop: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = []

    async def serve() -> None:
        with trio.CancelScope() as scope:
            stop.append((trio.lowlevel.current_trio_token(), scope))
            opening = open_server(
                settings or ServerSettings(port=0, model="scripted"),
                partial(open_store, "memory:"),
                partial(open_inline, lambda: machine(**script)),  # type: ignore[arg-type]
            )
            async with opening as server:
                service = server.application.service
                assert service is not None
                while service.runtime.capabilities is None:
                    await trio.sleep(0.01)
                answers.put(Served(server.port, service.supervisor))
                await trio.sleep_forever()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            answers.put(error)
            raise

    thread = threading.Thread(target=run, name="server", daemon=True)
    thread.start()
    answer = answers.get(timeout=30)
    if isinstance(answer, BaseException):
        raise AssertionError("the server did not start") from answer
    try:
        yield answer
    finally:
        token, scope = stop[0]
        token.run_sync_soon(scope.cancel)
        thread.join(timeout=10)
        assert not thread.is_alive()
