"""A client that goes away without a word: noticed at once, and its place is free at once, in a session and in the line."""

from __future__ import annotations

import pytest
import trio

from adapters.server.admission import Limits
from adapters.server.settings import ServerSettings
from tests.server.servers import Client, open_test_server
from tests.server.test_protocol_violations import PATHS

LINE = ServerSettings(model="scripted", sessions_max=1, limits=Limits(queue_max=3))
DUPLEX = "/v1/realtime?duplex=1&autostart=0"


async def hang_up(client: Client) -> None:
    """The connection is gone: no Close frame."""
    await trio.aclose_forcefully(client.socket._stream)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dialect", ["openai", "minicpmo", "moshi"])
async def test_a_session_that_cannot_be_resumed_ends_with_its_connection(dialect: str) -> None:
    async with open_test_server(LINE) as server, server.connect(PATHS[dialect]) as first:
        await first.socket.get_message()
        async with server.connect(PATHS["openai"]) as second:
            await trio.sleep(10)
            before = set(server.supervisor.sessions)
            await hang_up(first)
            left = trio.current_time()
            await second.until("session.created")
            assert trio.current_time() - left < 0.05
            assert before.isdisjoint(server.supervisor.sessions)


async def test_it_ends_in_the_middle_of_an_answer_too() -> None:
    async with open_test_server(LINE, answer_units=100) as server, server.connect(PATHS["openai"]) as first:
        await first.until("session.created")
        await first.say()
        await first.until("response.output_audio.delta")
        await hang_up(first)
        await trio.sleep(0.05)
        assert not server.supervisor.sessions


async def test_a_session_that_can_be_resumed_is_detached_at_once_and_waits() -> None:
    async with open_test_server() as server, server.connect(PATHS["duplex"]) as client:
        await client.until("session.created")
        (session,) = server.supervisor.sessions.values()
        assert session.attachment is not None
        await hang_up(client)
        await trio.sleep(0.05)
        assert session.attachment is None
        await trio.sleep(20)
        assert session.session_id in server.supervisor.sessions


@pytest.mark.parametrize("dialect", list(PATHS))
async def test_hanging_up_in_the_line_is_noticed_at_once(dialect: str) -> None:
    async with open_test_server(LINE) as server, server.connect(PATHS["openai"]) as first:
        await first.until("session.created")
        service = server.application.service
        assert service is not None
        async with server.connect(PATHS[dialect]) as second:
            await trio.sleep(4)
            assert service.admission.queue_length == 1
            await hang_up(second)
            await trio.sleep(0.05)
            assert service.admission.queue_length == 0
        assert len(server.supervisor.sessions) == 1


async def test_what_was_sent_in_the_line_is_carried_out_later_in_order() -> None:
    async with open_test_server(LINE) as server, server.connect(DUPLEX) as first:
        await first.send("session.update", session={})
        await first.until("session.created")
        async with server.connect(PATHS["openai"]) as second, trio.open_nursery() as nursery:
            await trio.sleep(1)

            async def talk() -> None:  # more than is read ahead: the rest waits in the transport
                for number in range(3_000):
                    await second.send("no.such.event", event_id=f"e{number}")

            nursery.start_soon(talk)
            await trio.sleep(10)
            await first.send("session.close")
            await second.until("session.created")
            for number in range(3_000):
                assert (await second.until("error"))["error"]["event_id"] == f"e{number}"
