"""A bare trio-websocket echo in a process of its own: what the machine and the library cost without any of this project."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from subprocess import PIPE

import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, open_websocket_url, serve_websocket

MESSAGE = '{"type":"barge_in","event_id":"event_0123456789abcdef0123456789abcdef"}'


async def _echo(request: WebSocketRequest) -> None:
    connection = await request.accept()
    with suppress(ConnectionClosed):
        while True:
            await connection.send_message(await connection.get_message())


async def _serve() -> None:
    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, _echo, "127.0.0.1", 0, None)
        print(server.port, flush=True)


@asynccontextmanager
async def echo_server() -> AsyncIterator[str]:
    """Its URL, for as long as the block lasts."""
    command = [sys.executable, "-m", "adapters.bench.echo_server"]
    process = await trio.lowlevel.open_process(command, stdout=PIPE)
    assert process.stdout is not None
    try:
        port = int(bytes(await process.stdout.receive_some(64)))
        yield f"ws://127.0.0.1:{port}/"
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def round_trips(url: str, count: int) -> list[float]:
    """Latencies in ms of ``count`` echoes, one after the other."""
    latencies = []
    async with open_websocket_url(url) as connection:
        for _ in range(count):
            asked = trio.current_time()
            await connection.send_message(MESSAGE)
            await connection.get_message()
            latencies.append((trio.current_time() - asked) * 1_000)
    return latencies


if __name__ == "__main__":
    trio.run(_serve)
