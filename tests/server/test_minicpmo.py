"""The demo's dialect through the front: queue, prepare, one result a chunk, force_listen, pause, stop."""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode, b64encode
from typing import Any

import pytest
import trio

from adapters.server.admission import Limits
from adapters.server.settings import ServerSettings
from tests.server.servers import PNG, Client, open_test_server

PATH = "/ws/duplex/adx_abc"
RATE = 16_000


def chunk(ms: int, loud: bool) -> str:
    count = ms * RATE // 1000
    samples = [0.3 * math.sin(i * 0.3) if loud else 0.0 for i in range(count)]
    return b64encode(struct.pack(f"<{count}f", *samples)).decode()


async def speak(client: Client, loud: bool = False, ms: int = 1_000, **fields: Any) -> dict[str, Any]:
    """One chunk, its second of time, and its result."""
    await client.send("audio_chunk", audio_base64=chunk(ms, loud), **fields)
    result = await client.until("result")
    await trio.sleep(ms / 1000)
    return result


async def prepared(client: Client, **fields: Any) -> dict[str, Any]:
    await client.send("prepare", **fields)
    return await client.until("prepared")


async def test_a_whole_conversation() -> None:
    deaf = {"inputs": "audio,text"}  # pictures and voices are taken from the client all the same
    async with open_test_server(answer_units=12, rtf=0.2, **deaf) as server, server.connect(PATH) as client:
        assert (await client.receive())["type"] == "queue_done"
        ready = await prepared(
            client, system_prompt="Be kind.", config={"ls_mode": "explicit"}, ref_audio_base64=chunk(100, True)
        )
        assert ready == {"type": "prepared", "prompt_length": 8}
        results = [await speak(client, loud=i == 0, frame_base64_list=["AAAA"]) for i in range(8)]
        assert [result["current_time"] for result in results] == list(range(8))
        speaking = [not result["is_listen"] for result in results]
        assert speaking[0] is False
        assert any(speaking)
        said = "".join(result["text"] for result in results)
        assert said.startswith("1 turn 1")
        audio = b"".join(b64decode(result["audio_data"]) for result in results if result["audio_data"])
        assert len(audio) == 12 * 200 * 24 * 4
        assert max(map(abs, struct.unpack(f"<{len(audio) // 4}f", audio))) <= 1.0
        first, last = speaking.index(True), len(speaking) - 1 - speaking[::-1].index(True)
        assert all(speaking[first : last + 1]), "a result that listens would end the client's turn in mid-answer"
        assert [i for i, result in enumerate(results) if result["end_of_turn"]] in ([last], [last + 1])
        (session,) = server.supervisor.sessions.values()
        assert session.state.config.instructions == "Be kind."
        await client.send("stop")
        assert (await client.closed())[0] == 1000
        assert client.seen[-1] == {"type": "stopped"}


async def test_a_model_that_sees_gets_the_pictures_and_the_voice() -> None:
    async with open_test_server(answer_units=12, rtf=0.2) as server, server.connect(PATH) as client:
        await prepared(client, ref_audio_base64=chunk(100, True))
        results = [await speak(client, loud=i == 0, frame_base64_list=[PNG]) for i in range(6)]
        said = "".join(result["text"] for result in results)
        (session,) = server.supervisor.sessions.values()
        voice = session.state.reference
        assert voice is not None
        assert said.startswith(f"1 turn 1 saw=2 voice={voice.digest[:4]}")
        assert [result["current_time"] for result in results] == list(range(6)), "a picture has no result of its own"
        sent = json.dumps(client.seen)
        assert PNG not in sent
        await client.send("audio_chunk", audio_base64=chunk(100, False), frame_base64_list=["AAAA"])
        assert "no PNG" in (await client.until("error"))["error"]


async def test_force_listen_cuts_the_answer_and_every_chunk_keeps_its_one_result() -> None:
    async with open_test_server(answer_units=100, rtf=0.2) as server, server.connect(PATH) as client:
        await prepared(client)
        results = [await speak(client, loud=i == 0) for i in range(4)]
        assert results[-1]["audio_data"]
        # Several chunks at once: some results are on their way when the cut comes.
        for forced in (False, False, True, True):
            await client.send("audio_chunk", audio_base64=chunk(200, False), force_listen=forced)
        results += [await client.until("result") for _ in range(4)]
        assert [result["current_time"] for result in results] == list(range(8))
        assert [result["is_listen"] for result in results[-2:]] == [True, True]
        assert [result["end_of_turn"] for result in results].count(True) == 1
        after = [await speak(client) for _ in range(3)]
        assert all(result["is_listen"] and not result["audio_data"] for result in after)


async def test_pausing_refuses_chunks_and_goes_on() -> None:
    async with open_test_server() as server, server.connect(PATH) as client:
        await prepared(client)
        await client.send("pause", timeout=5)
        assert await client.until("paused") == {"type": "paused", "timeout": 5.0}
        await client.send("audio_chunk", audio_base64=chunk(1_000, False))
        assert await client.until("error") == {"type": "error", "error": "Worker is paused"}
        await client.send("resume")
        assert await client.until("resumed") == {"type": "resumed"}
        assert (await speak(client))["current_time"] == 0
        assert client.types().count("prepared") == 1
        await client.send("pause")
        await client.until("paused")
        began = trio.current_time()
        assert await client.until("timeout") == {"type": "timeout", "reason": "Pause timeout (5.0s)"}
        assert trio.current_time() - began == pytest.approx(5, abs=0.2)
        assert (await client.closed())[0] == 1000


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"type": "audio_chunk"}, "Missing audio_base64"),
        ({"type": "dance"}, "Unknown message type: dance"),
        ({"type": "audio_chunk", "audio_base64": "!!!"}, "'audio_base64' is not base64."),
        ({"type": "audio_chunk", "audio_base64": "AAAAAAA="}, "'audio_base64' has 5 bytes"),
        ({"type": "audio_chunk", "audio_base64": b64encode(struct.pack("<f", math.nan)).decode()}, "not numbers"),
        ({"type": "audio_chunk", "audio_base64": "AAAAAA==", "force_listen": 3}, "'force_listen' is a boolean"),
        ({"type": "prepare", "system_prompt": 5}, "'system_prompt' is a string"),
        ({"type": "prepare", "config": []}, "'config' is an object"),
        ({"type": "pause", "timeout": -1}, "'timeout' lies between"),
    ],
)
async def test_a_message_that_cannot_be_is_answered_and_the_session_lives(message: dict[str, Any], error: str) -> None:
    async with open_test_server() as server, server.connect(PATH) as client:
        await prepared(client)
        await client.socket.send_message(json.dumps(message))
        assert error in (await client.until("error"))["error"]
        assert (await speak(client))["is_listen"]


async def test_the_old_interrupt_is_answered_and_does_nothing() -> None:
    async with open_test_server() as server, server.connect(PATH) as client:
        await client.send("prepare")  # clients send it before the queue is done, too
        await client.send("interrupt")
        await client.send("client_diagnostic", anything=1)
        assert await client.until("interrupted") == {"type": "interrupted"}
        assert (await speak(client))["current_time"] == 0


async def test_waiting_in_line_for_a_session() -> None:
    settings = ServerSettings(model="scripted", sessions_max=1, limits=Limits(queue_max=2))
    async with open_test_server(settings) as server, server.connect(PATH) as first:
        await prepared(first)
        async with server.connect(PATH) as second, server.connect(PATH) as third:
            queued = await second.receive()
            assert {**queued, "ticket_id": "", "estimated_wait_s": 0} == {
                "type": "queued",
                "position": 1,
                "estimated_wait_s": 0,
                "ticket_id": "",
                "queue_length": 1,
            }
            assert queued["ticket_id"].startswith("q_")
            assert queued["estimated_wait_s"] > 0
            assert (await third.receive())["position"] == 2
            async with server.connect(PATH) as fourth:
                assert (await fourth.receive()) == {"type": "error", "error": "Queue full (2 requests)"}
                assert (await fourth.closed())[0] == 1013
            update = await second.until("queue_update")
            assert set(update) == {"type", "position", "estimated_wait_s", "queue_length"}
            await first.send("stop")
            assert (await second.until("queue_done")) == {"type": "queue_done"}
            while (await third.until("queue_update"))["position"] != 1:
                pass
            await prepared(second)
        assert server.application.service is not None
        await trio.sleep(5)
        assert not server.supervisor.sessions
        assert server.application.service.admission.queue_length == 0


async def test_a_lost_connection_ends_its_session() -> None:
    async with open_test_server(answer_units=50) as server:
        async with server.connect(PATH) as client:
            await prepared(client)
            await speak(client, loud=True)
        await trio.sleep(2)
        assert not server.supervisor.sessions


async def test_no_path_without_an_id() -> None:
    async with open_test_server() as server:
        assert (await server.get("/ws/duplex/"))[0] == 404
        assert (await server.get(PATH))[0] == 426


async def test_what_is_sent_behind_a_stop_takes_nothing_from_its_answer() -> None:
    async with open_test_server() as server, server.connect(PATH) as client:
        await client.send("prepare")
        await client.send("stop")
        for _ in range(3):
            await client.send("prepare")
        assert (await client.closed())[0] == 1000
        assert client.types()[-1] == "stopped"
