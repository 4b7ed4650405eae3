"""A server of the benchmark's own: a fresh process with a fresh SQLite log in a folder that goes away."""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL

import attrs
import h11
import trio

START_TIMEOUT_S = 90


class ServerDidNotStart(Exception):
    """The message holds the end of the server's own words."""


@attrs.frozen
class OwnServer:
    """Where it listens, where its log is, and its process."""

    url: str
    store_url: str
    process: trio.Process


@asynccontextmanager
async def own_server(
    model: str, options: Mapping[str, str], extra: tuple[str, ...] = (), store_url: str | None = None
) -> AsyncIterator[OwnServer]:
    """``duologue serve`` with ``model`` on a free loopback port, ready to be talked to; on a store of its own unless
    ``store_url`` names another. Raises ServerDidNotStart."""
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as folder:
        port = _free_port()
        store_url = store_url or f"sqlite:///{folder}/log.sqlite3"
        words = Path(folder) / "server.log"
        flags = [flag for key, value in options.items() for flag in ("--model-option", f"{key}={value}")]
        command = [
            *(sys.executable, "-m", "adapters.command_line.main", "serve", "--port", str(port)),
            *("--store", store_url, "--model", model, *flags, *extra),
        ]
        async with trio.open_nursery() as nursery:
            with words.open("wb") as log:
                process = await trio.lowlevel.open_process(command, stdin=DEVNULL, stdout=log, stderr=log)
            try:
                await _until_ready(process, port, words)
                yield OwnServer(f"ws://127.0.0.1:{port}/v1/realtime", store_url, process)
            finally:
                if process.returncode is None:
                    process.terminate()
                with trio.move_on_after(15, shield=True):
                    await process.wait()
                if process.returncode is None:
                    process.kill()
            nursery.cancel_scope.cancel()


async def _until_ready(process: trio.Process, port: int, words: Path) -> None:
    with trio.move_on_after(START_TIMEOUT_S):
        while process.returncode is None and process.poll() is None:
            if await _is_ready(port):
                return
            await trio.sleep(0.1)
    raise ServerDidNotStart(words.read_text(errors="replace")[-2_000:])


async def _is_ready(port: int) -> bool:
    try:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
    except OSError:
        return False
    connection = h11.Connection(h11.CLIENT)
    async with stream:
        request = h11.Request(method="GET", target="/readyz", headers=[("Host", "127.0.0.1"), ("Connection", "close")])
        await stream.send_all(connection.send(request) + connection.send(h11.EndOfMessage()))
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(4096))
            elif isinstance(event, h11.Response):
                return bool(event.status_code == 200)
            else:
                return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
