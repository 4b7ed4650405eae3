"""A server that was stopped, or whose machine slept: the time limits of its clients' connections did not go on meanwhile."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio_websocket import wrap_client_stream

from adapters.server.patience import LOOK_S, Patience
from tests.server.servers import Client, open_test_server


def stop_server(for_s: float) -> None:
    """Time passes in which nobody runs."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    clock.jump(for_s)


async def test_a_first_message_that_came_while_the_server_was_stopped_is_in_time() -> None:
    async with open_test_server() as server, server.connect("/v1/realtime?duplex=1") as client:
        await trio.sleep(1)
        stop_server(60)
        await client.send("session.update", session={})
        assert (await client.receive())["type"] == "session.created"


async def test_a_request_of_which_the_rest_came_after_the_stop_is_answered() -> None:
    async with open_test_server() as server:
        ours = server.dial()
        await ours.send_all(b"GET /healthz HTTP/1.1\r\n")
        await trio.sleep(1)
        stop_server(60)
        await ours.send_all(b"Host: a\r\n\r\n")
        assert bytes(await ours.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_takes_its_messages_after_the_stop_keeps_its_connection() -> None:
    async with open_test_server() as server, trio.open_nursery() as nursery:
        ours, theirs = trio.testing.lockstep_stream_pair()
        server.nursery.start_soon(server.application.handle, theirs)
        client = Client(await wrap_client_stream(nursery, ours, "localhost", "/v1/realtime"), 24_000)
        await client.receive()
        await client.say()
        await trio.sleep(5)  # the server waits for the client, which reads nothing
        stop_server(60)
        assert (await client.until("response.done"))["response"]["status"] == "completed"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("limit_s", [0.1, 3.0])
async def test_a_limit_ends_what_takes_longer_and_nothing_that_does_not(limit_s: float) -> None:
    patience = Patience()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(patience.look)
        began = trio.current_time()
        with pytest.raises(trio.TooSlowError), patience.fail_after(limit_s):
            await trio.sleep_forever()
        assert limit_s <= trio.current_time() - began <= limit_s + 2 * LOOK_S
        with patience.fail_after(limit_s):
            await trio.sleep(limit_s)
        await trio.sleep(10 * limit_s)
        nursery.cancel_scope.cancel()
