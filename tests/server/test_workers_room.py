"""How many conversations a server with several workers holds: as many as they have room for, all together."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest
import trio

from adapters.bench.own_server import ServerProcess, own_server
from adapters.client.errors import ClientError
from adapters.client.trio_client import DuplexClient

pytestmark = [pytest.mark.crash, pytest.mark.realtime]


def ask(server: ServerProcess, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


async def readiness(server: ServerProcess) -> Any:
    return json.loads((await trio.to_thread.run_sync(ask, server, "/readyz"))[1])


async def workers_up(server: ServerProcess, count: int) -> None:
    with trio.fail_after(60):
        while (
            f"duologue_runtime_workers_up {count}.0" not in (await trio.to_thread.run_sync(ask, server, "/metrics"))[1]
        ):
            await trio.sleep(0.05)


async def test_the_room_is_that_of_all_workers_that_are_up_and_readiness_says_when_it_is_taken() -> None:
    options = {"sessions_max": "1", "unit_ms": "200"}
    async with own_server("scripted", options, ("--workers", "2")) as server:
        await workers_up(server, 2)
        async with DuplexClient(server.url, model="scripted"), DuplexClient(server.url, model="scripted"):
            detail = "2 of 2 sessions, 2 of 2 workers up"
            assert await readiness(server) == {"ready": False, "reason": "sessions_full", "detail": detail}
            with pytest.raises(ClientError) as caught:
                async with DuplexClient(server.url, model="scripted"):
                    pytest.fail("a third came in")
            assert "resource_exhausted" in str(caught.value)
        with trio.fail_after(60):
            while not (await readiness(server))["ready"]:
                await trio.sleep(0.05)
