"""What one client does to the others: nothing."""

from __future__ import annotations

import base64

import pytest
import trio
import trio.testing
from trio_websocket import wrap_client_stream

from adapters.server.settings import ServerSettings
from store.memory import Fault
from store.queueing import QueueLimits
from tests.server.servers import Client, Server, open_test_server


async def test_a_client_that_does_not_read_is_let_go_and_nobody_else_notices() -> None:
    settings = ServerSettings(model="scripted", send_timeout_s=20.0)
    async with (
        open_test_server(settings, long_units=300, transcript="a long question") as server,
        server.connect() as other,
        trio.open_nursery() as nursery,
    ):
        await other.receive()
        ours, theirs = trio.testing.lockstep_stream_pair()
        server.nursery.start_soon(server.application.handle, theirs)
        stalled = Client(await wrap_client_stream(nursery, ours, "localhost", "/v1/realtime"), 24_000)
        await stalled.receive()
        await stalled.say()
        began = trio.current_time()
        await other.say()
        await other.until("response.output_audio.delta")
        assert trio.current_time() - began < 2
        await trio.sleep(60)
        first, *rest = server.supervisor.sessions.values()
        assert not rest, "the stalled session ended with its grace"
        assert first.attachment is not None
        await other.send("response.cancel")
        await other.until("response.done")
        nursery.cancel_scope.cancel()


async def test_a_client_that_floods_is_answered_and_nobody_else_notices() -> None:
    async with open_test_server() as server, server.connect() as other:
        await other.receive()
        async with server.connect() as flood:
            await flood.receive()
            for _ in range(3_000):
                await flood.send("conversation.item.retrieve", item_id="nope")
            await other.say()
            await other.until("response.done")
            await flood.send("session.update", session={"instructions": "still here"})
            await flood.until("session.updated")
            assert flood.types().count("error") == 3_000, "each was refused, none was dropped"
        assert "error" not in other.types()


@pytest.mark.parametrize("size", [100_000, 1_000_000])
async def test_clients_that_send_faster_than_the_store_writes_are_pushed_back_and_nobody_loses_a_log(size: int) -> None:
    """The store's queue is everybody's. What these few send is more than it holds, and twice what it lets one have."""
    clients, sent = 5, 6_000_000 // size
    queue = QueueLimits(bytes_max=12_000_000, session_bytes_max=3_000_000)
    chunk = base64.b64encode(bytes(size)).decode()

    async def flood(server: Server) -> None:
        async with server.connect() as client, trio.open_nursery() as nursery:
            await client.receive()
            nursery.start_soon(heard, client)
            for _ in range(sent):
                await client.send("input_audio_buffer.append", audio=chunk)
                await client.send("input_audio_buffer.clear")
            while client.types().count("input_audio_buffer.cleared") < sent:
                await trio.sleep(1)
            nursery.cancel_scope.cancel()

    async with open_test_server(queue=queue) as server, server.connect() as other:
        await other.receive()
        server.store.policy = lambda request: Fault(after_s=0.2)
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(flood, server)
            await other.say()
            await other.until("response.done")
        assert server.supervisor.statistics().failed == 0


async def heard(client: Client) -> None:
    while True:
        await client.receive()


async def test_many_answers_at_once_push_a_client_back_and_do_not_drop_it() -> None:
    async with open_test_server() as server, trio.open_nursery() as nursery:
        ours, theirs = trio.testing.lockstep_stream_pair()
        server.nursery.start_soon(server.application.handle, theirs)
        client = Client(await wrap_client_stream(nursery, ours, "localhost", "/v1/realtime?model=scripted"), 24_000)
        await client.until("session.created")

        async def ask() -> None:
            for _ in range(300):
                await client.send("no.such.event")

        nursery.start_soon(ask)
        for _ in range(300):
            assert (await client.until("error"))["error"]["code"] == "unknown_event"
            await trio.sleep(0.02)
        nursery.cancel_scope.cancel()


async def test_a_fragmented_giant_closes_only_its_own_connection() -> None:
    async with open_test_server() as server, server.connect() as other:
        await other.receive()
        async with server.connect() as giant:
            await giant.receive()
            await giant.socket.send_message("x" * (17 * 1024 * 1024))
            assert (await giant.closed())[0] == 1009
        await other.say()
        await other.until("response.done")
