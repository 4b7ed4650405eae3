"""A live server, a client that sends whatever it likes, and a neighbour who notices nothing of it.

How long it hunts is HYPOTHESIS_PROFILE's: dev plays 12 conversations of each dialect, ci 40, soak 4,000.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio_websocket import ConnectionClosed, WebSocketConnection

from adapters.wire.dialects import DUPLEX, MINICPMO, OPENAI
from tests import virtual_time
from tests.server.servers import Server, open_test_server
from tests.server.test_minicpmo import PATH as DEMO
from tests.server.test_minicpmo import chunk
from tests.wire.test_clocked_fuzz import DAMAGED, DEMO_FIELDS, JSON, SOUND

EXAMPLES = {"dev": 12, "ci": 40, "soak": 4_000}[
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
]
UNITS = 6
GA, DUPLEX_PATH, MOSHI_PATH = "/v1/realtime", "/v1/realtime?duplex=1&model=scripted", "/api/chat"

OUR_FAULTS = frozenset({1006, 1011})
"""Close codes with which this server would own that it tripped."""


def message(kind: str, fields: dict[str, Any]) -> str:
    return json.dumps({"type": kind, **fields})


NOISE = st.text(max_size=200) | st.binary(max_size=200)
DEMO_GOOD = st.sampled_from(
    [
        message("prepare", {"system_prompt": "Be kind."}),
        message("audio_chunk", {"audio_base64": chunk(400, True)}),
        message("audio_chunk", {"audio_base64": chunk(1_000, False)}),
        message("audio_chunk", {"audio_base64": chunk(200, False), "force_listen": True}),
        message("pause", {"timeout": 1}),
        message("resume", {}),
        message("stop", {}),
    ]
)
DEMO_WILD = st.builds(
    message, st.sampled_from([*MINICPMO.handlers, "dance"]), st.dictionaries(DEMO_FIELDS, JSON | SOUND, max_size=5)
)
MOSHI_WILD = st.builds(lambda kind, page: bytes([kind]) + page, st.sampled_from([1] * 12 + [*range(11)]), DAMAGED)
EVENT_FIELDS = st.sampled_from(
    "session audio item item_id response response_id audio_end_ms played_ms event_id event text".split()  # noqa: SIM905
)
EVENT_WILD = st.builds(
    message,
    st.sampled_from(sorted({*OPENAI.handlers, *DUPLEX.handlers, *DUPLEX.aliases} - {"session.resume"})),
    st.dictionaries(EVENT_FIELDS, JSON | SOUND, max_size=4),
)
WILD = {
    DEMO: DEMO_GOOD | DEMO_WILD | NOISE,
    MOSHI_PATH: MOSHI_WILD | NOISE,
    GA: EVENT_WILD | NOISE,
    DUPLEX_PATH: EVENT_WILD | NOISE,
}


@pytest.mark.parametrize("path", list(WILD), ids=["demo", "moshi", "openai", "duplex"])
@pytest.mark.limit(wall_s=240)
def test_a_neighbour_is_served_whatever_is_sent_beside_it(path: str, caplog: pytest.LogCaptureFixture) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(messages=st.lists(WILD[path], max_size=12), pause_ms=st.sampled_from([0, 0, 50, 1_500]))
    def hunt(messages: list[str | bytes], pause_ms: int) -> None:
        caplog.clear()
        virtual_time.run(conversation, path, messages, pause_ms)
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    hunt()


async def conversation(path: str, messages: list[str | bytes], pause_ms: int) -> None:
    async with open_test_server(answer_units=UNITS, rtf=0.05) as server, server.connect(GA) as neighbour:
        await neighbour.until("session.created")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wild, server, path, messages, pause_ms)
            for turn in (1, 2):
                await neighbour.say()
                done = (await neighbour.until("response.done"))["response"]
                assert (done["status"], len(done["output"])) == ("completed", 1)
                assert f"turn {turn}" in done["output"][0]["content"][0]["transcript"]
                assert neighbour.types().count("response.output_audio.delta") == UNITS * turn
        assert "error" not in neighbour.types()
        assert server.supervisor.statistics().failed == 0
        async with server.connect(path) as after:
            with trio.fail_after(30):  # whoever comes next is let in: nothing of the first one's is left behind
                await after.socket.get_message()


async def wild(server: Server, path: str, messages: list[str | bytes], pause_ms: int) -> None:
    """Send all of it, read what comes, and leave, unless the server ends it first."""
    async with server.connect(path) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, client.socket)
            try:
                for one in messages:
                    await client.socket.send_message(one)
                    await trio.sleep(pause_ms / 1000)
                await trio.sleep(5)
            except ConnectionClosed:
                pass
            nursery.cancel_scope.cancel()
        closed = client.socket.closed
        assert closed is None or closed.code not in OUR_FAULTS, closed


async def listen(socket: WebSocketConnection) -> None:
    try:
        while True:
            await socket.get_message()
    except ConnectionClosed:
        return
