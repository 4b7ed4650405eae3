"""A real server on a real port, in a thread of its own, for clients that bring their own event loop."""

from __future__ import annotations

import queue
import threading
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


@attrs.frozen
class Served:
    """A server that runs: its address, and its sessions as they are (read only, from another thread)."""

    port: int
    supervisor: Supervisor

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


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
