"""A process that may open no more files: it goes on serving, takes connections again once there is room, and does not fill
its log meanwhile."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import time
import urllib.request
from contextlib import ExitStack

import pytest
import trio

from adapters.client.trio_client import DuplexClient
from adapters.server import listening
from tests.server.test_serve_command import serving

IDLE = 24
ROOM = 4
HELD_S = 1.5
"""Long enough for fifteen attempts, of which one may be told."""


async def answered(client: DuplexClient) -> str:
    with trio.fail_after(30):
        await client.send_text("are you there")
        async for response in client.responses():
            return str((await response.wait_done()).status)
    raise AssertionError("no answer")


@pytest.mark.realtime
@pytest.mark.limit(wall_s=120)
def test_conversations_go_on_and_connections_come_again_when_there_is_room() -> None:
    async def story(process: subprocess.Popen[str], port: int) -> str:
        async with DuplexClient(f"ws://127.0.0.1:{port}/v1/realtime", model="scripted") as client:
            assert await answered(client) == "completed"
            with ExitStack() as idle:
                most = len(os.listdir(f"/proc/{process.pid}/fd")) + ROOM
                _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, hard))
                for _ in range(IDLE):
                    idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
                with trio.fail_after(30):
                    while len(os.listdir(f"/proc/{process.pid}/fd")) < most:
                        await trio.sleep(0.1)
                await trio.sleep(HELD_S)
                assert len(os.listdir(f"/proc/{process.pid}/fd")) == most
                assert await answered(client) == "completed"
            page = await trio.to_thread.run_sync(read, f"http://127.0.0.1:{port}/metrics")
            assert await answered(client) == "completed"
            return page

    with serving("--model", "scripted", "--store", "memory:") as (process, port):
        page = trio.run(story, process, port)
        process.terminate()
        assert process.stderr is not None
        told = [line for line in process.stderr.read().splitlines() if "no room for one more connection" in line]
    (failed,) = (
        float(line.split()[1]) for line in page.splitlines() if line.startswith("duologue_accepts_failed_total")
    )
    assert failed > 1
    assert len(told) == 1
    assert "ulimit -n" in told[0]


def read(url: str) -> str:
    """A page, once the server takes connections again."""
    until = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def test_a_server_asks_for_as_many_files_as_its_connections_need(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    for soft, hard, connections, gets in (
        (1_024, 65_536, 1_024, [(1_024 + listening.DESCRIPTORS_BESIDE, 65_536)]),
        (1_024, 1_100, 1_024, [(1_100, 1_100)]),
        (65_536, 65_536, 1_024, []),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 1_024, []),
    ):
        asked.clear()
        monkeypatch.setattr(listening.resource, "getrlimit", lambda _, limits=(soft, hard): limits)
        monkeypatch.setattr(listening.resource, "setrlimit", lambda _, limits: asked.append(limits))
        listening.allow_descriptors(connections)
        assert asked == gets
