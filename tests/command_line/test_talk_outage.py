"""A talk whose server is killed and loads its model again, on a fake network under a mock clock."""

from __future__ import annotations

import pytest
import trio

from adapters.client.errors import ConnectionLost
from adapters.client.transport import TransportRefused
from adapters.client.trio_client import DuplexClient
from adapters.command_line.talk_session import Talk, TalkPlan
from tests.client.fake_server import MemoryNetwork, network, tone
from tests.speech.hearing import sound

LOADING = TransportRefused(503, b'{"error": {"code": "loading", "message": "The model is still loading."}}', "2")
QUESTION = sound(("question.wav", tone(500)))


class Lines:
    """Keeps what a talk tells."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def levels(self, user: float, assistant: float, state: str) -> None:
        """Nothing."""


async def killed_in_mid_answer(net: MemoryNetwork, down_s: float) -> None:
    """Kill the server while it answers; for ``down_s`` whoever comes is told that it loads."""
    while not net.server.session.produced:
        await trio.sleep(0.1)
    await trio.sleep(0.5)
    net.server.refuse = LOADING
    net.cut()
    await trio.sleep(down_s)
    net.server.refuse = None


@pytest.mark.limit(virtual_s=300)
async def test_a_server_that_loads_for_a_minute_is_waited_for_and_the_talk_goes_on() -> None:
    told = Lines()
    async with network(answer_ms=3_000) as net, DuplexClient("ws://test/v1/realtime", connect=net.connect) as client:
        talk = Talk(client, TalkPlan(question=QUESTION, timeout_s=10), told)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(killed_in_mid_answer, net, 60)
            await talk.run()
        summary = talk.record.summary()
    assert summary["reconnects"] == 1
    assert [(answer["status"], answer["played_ms"]) for answer in summary["answers"]] == [("completed", 3_000)]
    outage = [line for line in told.lines if "connection is lost" in line or "there again" in line]
    assert outage == [
        "-- the connection is lost; waiting for the server, for 120 s at most",
        "-- the server is there again, but: The model is still loading (loading)",
    ]
    assert "-- reconnected, the session goes on" in told.lines


@pytest.mark.limit(virtual_s=300)
async def test_the_wait_has_a_limit() -> None:
    async with network(answer_ms=3_000) as net, DuplexClient("ws://test/v1/realtime", connect=net.connect) as client:
        talk = Talk(client, TalkPlan(question=QUESTION), Lines())
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(killed_in_mid_answer, net, 250)
            with pytest.raises(ConnectionLost, match="The model is still loading"):
                await talk.run()
            assert 110 < trio.current_time() - began < 130
            nursery.cancel_scope.cancel()
