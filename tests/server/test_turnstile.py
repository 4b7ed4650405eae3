"""When the event loop is behind, clients' sound goes through a few messages a turn, and nothing else waits for it."""

from __future__ import annotations

import trio

from adapters.server.turnstile import EACH_TURN, LAG_S, SMALL_CHARS, Turnstile
from tests.server.servers import open_test_server

SOUND = "x" * SMALL_CHARS
CLIENTS = 5 * EACH_TURN


async def passed(turnstile: Turnstile, message: str, turns: int) -> int:
    """How many of CLIENTS messages are through so many turns of the event loop after they came."""
    through = []

    async def client(number: int) -> None:
        await turnstile.through(message)
        through.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(CLIENTS):
            nursery.start_soon(client, number)
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        count = len(through)
    assert len(through) == CLIENTS
    assert not turnstile.waiting
    return count


async def test_nobody_waits_while_the_loop_keeps_up() -> None:
    assert await passed(Turnstile(lambda: 0.0), SOUND, turns=2) == CLIENTS


async def test_a_few_pass_each_turn_when_the_loop_is_behind() -> None:
    turnstile = Turnstile(lambda: LAG_S)
    assert await passed(turnstile, SOUND, turns=3) <= 3 * EACH_TURN
    assert await passed(turnstile, SOUND, turns=CLIENTS) == CLIENTS


async def test_who_waits_keeps_the_order_though_the_loop_has_caught_up() -> None:
    lags = [LAG_S] * CLIENTS
    assert await passed(Turnstile(lambda: lags.pop() if lags else 0.0), SOUND, turns=3) <= 3 * EACH_TURN


async def test_a_cut_waits_for_no_sound() -> None:
    turnstile = Turnstile(lambda: LAG_S)
    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(turnstile.through, SOUND)
        for _ in range(2):
            await trio.lowlevel.checkpoint()
        assert turnstile.waiting > EACH_TURN
        await turnstile.through("x" * (SMALL_CHARS - 1))
        assert turnstile.waiting > EACH_TURN


async def test_a_client_that_leaves_while_it_waits_takes_no_place_with_it() -> None:
    turnstile = Turnstile(lambda: LAG_S)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(turnstile.through, SOUND)
            await trio.lowlevel.checkpoint()
            scope.cancel()
    assert not turnstile.waiting
    assert await passed(turnstile, SOUND, turns=CLIENTS) == CLIENTS


async def test_the_sound_of_a_conversation_goes_through_it() -> None:
    async with open_test_server() as server, server.connect("/v1/realtime?model=scripted") as client:
        service = server.application.service
        assert service is not None
        await client.until("session.created")
        (session,) = server.supervisor.sessions.values()
        service.metrics.last_lag_s = LAG_S
        for _ in range(EACH_TURN):
            await service.turnstile._places.acquire()
        await client.say()
        await trio.sleep(1)
        assert not session.state.input.samples
        for _ in range(EACH_TURN):
            service.turnstile._places.release()
        done = await client.until("response.done")
        assert done["response"]["status"] == "completed"
        assert session.state.input.samples
