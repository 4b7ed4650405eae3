"""How far ahead of its playback an answer is sent when nobody asks for anything: a little where the client can throw little
away, or hears of no cut at all; all of it in the duplex dialect, whose clients acknowledge what they play."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from tests.server.servers import Client, Server, open_test_server
from tests.server.test_minicpmo import PATH as DEMO
from tests.server.test_minicpmo import speak
from tests.server.test_moshi import QUIET, TONE, talking

UNIT_MS = 200
ANSWER = {"answer_units": 30, "unit_ms": UNIT_MS, "rtf": 0.01}
"""Six seconds that are made in a few ms."""


@asynccontextmanager
async def watching(server: Server) -> AsyncIterator[list[int]]:
    """How much of the answer was sent beyond what can have been played, every 20 ms, in ms."""
    leads: list[int] = []
    began: dict[str, float] = {}

    async def watch() -> None:
        while True:
            for session in server.supervisor.sessions.values():
                for name, sent in session.outbox.cursor().sent.items():
                    leads.append(
                        sent.sent_ms - round((trio.current_time() - began.setdefault(name, trio.current_time())) * 1000)
                    )
            await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield leads
        nursery.cancel_scope.cancel()


async def json_talk(server: Server, path: str, lead_ms: int | None) -> None:
    async with server.connect(path, 16_000 if "duplex" in path else 24_000) as client:
        session = (await client.until("session.created"))["session"]
        assert (session["unit_ms"], session["max_client_lead_ms"]) == (UNIT_MS, lead_ms)
        assert session["recommended_prebuffer_ms"] >= 0
        await client.send("session.update", session={"turn_detection": {"type": "server_vad"}})
        await client.say()
        await client.until("response.done")
        await trio.sleep(5)


async def openai(server: Server) -> None:
    await json_talk(server, "/v1/realtime", 1_500)


async def duplex(server: Server) -> None:
    await json_talk(server, "/v1/realtime?duplex=1&model=scripted", None)


async def demo(server: Server) -> None:
    async with server.connect(DEMO) as client:
        assert isinstance(client, Client)
        await client.send("prepare")
        await client.until("prepared")
        for number in range(10):
            await speak(client, loud=number == 0)


async def moshi(server: Server) -> None:
    async with talking(server) as talker:
        await talker.frames(TONE, 6)
        await talker.frames(QUIET, 90)


@pytest.mark.parametrize(
    ("talk", "least", "most"),
    [
        (openai, 1_000, 1_500 + UNIT_MS),
        (duplex, 6_000 - UNIT_MS, 6_000),
        (demo, 0, 2_000 + UNIT_MS),
        (moshi, 200, 400 + UNIT_MS),
    ],
)
async def test_an_answer_is_sent_only_so_far_ahead(
    talk: Callable[[Server], Awaitable[None]], least: int, most: int
) -> None:
    async with open_test_server(**ANSWER) as server, watching(server) as leads:
        await talk(server)
        assert least <= max(leads) <= most
