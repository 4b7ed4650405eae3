"""vLLM-Omni's own DuplexClient, unmodified, holds its conversations with this server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from adapters.server.settings import ServerSettings
from tests.interop import foreign
from tests.interop.servers import served
from tests.interop.sounds import silence, tone

pytestmark = [pytest.mark.interop, pytest.mark.needs("websockets"), pytest.mark.limit(wall_s=400)]

RATE = 16_000
SERVER_VAD = {"type": "server_vad"}
WAIT_S = 15.0


@pytest.fixture(scope="module")
def duplex() -> Iterator[Any]:
    """The module ``vllm_omni.clients.duplex``."""
    folder = str(foreign.vllm_omni())
    sys.path.insert(0, folder)
    try:
        import vllm_omni.clients.duplex as module
        import vllm_omni.clients.minicpmo_4_5 as preset

        module.minicpmo_config = preset.create_duplex_session_config
        yield module
    finally:
        sys.path.remove(folder)


@asynccontextmanager
async def connected(duplex: Any, port: int, **session: Any) -> AsyncIterator[Any]:
    """An open session of the client's own MiniCPM-o preset, with this server's detector. ``sockets`` are its own."""
    import websockets

    sockets: list[Any] = []

    async def connect(url: str) -> Any:
        sockets.append(await websockets.connect(url, max_size=2**26))
        return sockets[-1]

    config = duplex.minicpmo_config(**{"turn_detection": SERVER_VAD, "overlap_policy": None, **session})
    policy = duplex.ReconnectPolicy(max_attempts=5, backoff_s=(0.05, 0.2))
    url = f"ws://127.0.0.1:{port}"
    async with duplex.DuplexClient(
        url, model="openbmb/MiniCPM-o-4_5", config=config, reconnect=policy, connect=connect
    ) as client:
        client.sockets = sockets
        yield client


async def say(client: Any) -> None:
    await client.stream_pcm(tone(400, RATE) + silence(800, RATE), realtime=False)


async def next_response(client: Any) -> Any:
    return await asyncio.wait_for(anext(client.responses()), WAIT_S)


def talk(story: Callable[..., Awaitable[None]], duplex: Any, *, and_leaves: bool = False, **script: Any) -> None:
    """Run ``story(port)`` against a server of its own."""
    settings = ServerSettings(port=0, model="scripted", model_aliases=("openbmb/MiniCPM-o-*",))
    with served(settings, **{"answer_units": 8, "rtf": 0.2, **script}) as server:
        asyncio.run(asyncio.wait_for(story(duplex, server.port), 60))
        assert server.is_left() or not and_leaves, "the session was closed, and not only its connection"


def test_it_connects_configures_speaks_hears_and_closes(duplex: Any) -> None:
    async def story(duplex: Any, port: int) -> None:
        async with connected(duplex, port, instructions="Be kind.") as client:
            assert client.session_info["instructions"] == "Be kind."
            assert client.session_info["turn_detection"]["type"] == "server_vad"
            assert client.resume_token
            for turn in (1, 2):
                await say(client)
                response = await next_response(client)
                audio = b""
                async for chunk in response.audio():
                    audio += chunk
                    await client.ack_playback(response.played_ms, response_id=response.response_id)
                assert (response.decision, len(audio)) == ("speak", 8 * 200 * 24_000 // 500)
                assert f"turn {turn}" in response.transcript
                assert response.done_event.raw["response"]["status"] == "completed"
            await client.close()
            with pytest.raises(duplex.DuplexSessionClosedError):
                await client.commit()

    talk(story, duplex, and_leaves=True)


def test_a_committed_turn_is_answered_where_the_model_decides(duplex: Any) -> None:
    async def story(duplex: Any, port: int) -> None:
        async with connected(duplex, port, turn_detection=None) as client:
            assert client.session_info["overlap_policy"] == "listen_only"
            await client.stream_pcm(tone(400, RATE), realtime=False, is_speech=True)
            await client.commit()
            response = await next_response(client)
            await response.wait(WAIT_S)
            assert response.transcript.startswith("1 turn 1")

    talk(story, duplex)


def test_it_interrupts_and_no_stale_audio_follows(duplex: Any) -> None:
    async def story(duplex: Any, port: int) -> None:
        collector = duplex.EventCollector()
        async with connected(duplex, port) as client:
            collecting = asyncio.create_task(collector.consume(client))
            await say(client)
            response = await next_response(client)
            await anext(response.audio())
            await client.ack_playback(150, response_id=response.response_id)
            await client.send({"type": "barge_in"})
            await response.wait(WAIT_S)
            details = response.done_event.raw["response"]["status_details"]
            assert details == {"type": "cancelled", "reason": "barge_in"}
            await say(client)
            after = await next_response(client)
            await after.wait(WAIT_S)
            await client.close()
            await collecting
        done = next(i for i, e in enumerate(collector.events) if e["type"] == "response.done")
        late = [e for e in collector.events[done:] if e.get("response_id") == response.response_id]
        assert not [e for e in late if "delta" in e["type"]]
        numbers = [e["server_event_seq"] for e in collector.events if "server_event_seq" in e]
        skipped = collector.events[done]["response"]["metadata"].get("skipped", [])
        dead = {n for first, last in skipped for n in range(first, last + 1)}
        assert sorted({*numbers, *dead}) == list(range(numbers[0], numbers[-1] + 1))

    talk(story, duplex, answer_units=200)


def test_it_speaks_over_the_answer(duplex: Any) -> None:
    async def story(duplex: Any, port: int) -> None:
        async with connected(duplex, port) as client:
            await say(client)
            response = await next_response(client)
            await anext(response.audio())
            await client.stream_pcm(tone(1_500, RATE) + silence(800, RATE), realtime=False)
            await response.wait(WAIT_S)
            assert response.done_event.raw["response"]["status_details"]["reason"] == "turn_detected"
            assert (await next_response(client)).decision == "speak"

    talk(story, duplex, long_units=200, transcript="a long question", answer_units=200)


def test_it_truncates_and_the_unheard_text_never_comes_again(duplex: Any) -> None:
    async def story(duplex: Any, port: int) -> None:
        async with connected(duplex, port) as client:
            await say(client)
            response = await next_response(client)
            await response.wait(WAIT_S)
            item = response.done_event.raw["response"]["output"][0]
            await client.send(
                {
                    "type": "conversation.item.truncate",
                    "item_id": item["id"],
                    "content_index": 0,
                    "audio_end_ms": 10**6,
                }
            )
            whole = await client.wait_for("conversation.item.truncated", timeout_s=WAIT_S)
            assert whole.raw["audio_end_ms"] == 1_600  # what was sent, not what was claimed
            await client.send(
                {"type": "playback.ack", "played_ms": 400, "truncate": True, "response_id": response.response_id}
            )
            event = await client.wait_for("conversation.item.truncated", timeout_s=WAIT_S)
            assert event.raw["audio_end_ms"] == 400
            await client.send({"type": "conversation.item.retrieve", "item_id": item["id"]})
            kept = (await client.wait_for("conversation.item.retrieved", timeout_s=WAIT_S)).raw["item"]
            text = kept["content"][0]["transcript"]
            assert text
            assert response.transcript.startswith(text)
            assert len(text) < len(response.transcript) / 2

    talk(story, duplex)


def test_what_cannot_be_done_is_said_and_the_session_lives(duplex: Any) -> None:
    async def story(duplex: Any, port: int) -> None:
        async with connected(duplex, port) as client:
            await client.cancel_response()
            with pytest.raises(duplex.DuplexProtocolError) as caught:
                await client.wait_for("response.done", timeout_s=WAIT_S)
            assert caught.value.code == "response_not_active"
            await client.clear_input()
            await client.wait_for("input_audio_buffer.cleared", timeout_s=WAIT_S)
            await client.commit()
            with pytest.raises(duplex.DuplexProtocolError) as caught:
                await client.wait_for("response.done", timeout_s=WAIT_S)
            assert caught.value.code == "input_audio_buffer_empty"
            await say(client)
            while True:
                try:
                    response = await next_response(client)
                    break
                except duplex.DuplexProtocolError:
                    continue  # the two errors from above
            await client.cancel_response(response.response_id)
            await response.wait(WAIT_S)
            assert response.done_event.raw["response"]["status_details"]["reason"] == "client_cancelled"
            await client.close()

    talk(story, duplex, answer_units=100)


@pytest.mark.parametrize("drops", [1, 3])
def test_its_socket_is_torn_and_it_resumes_without_loss_or_duplicate(duplex: Any, drops: int) -> None:
    async def story(duplex: Any, port: int) -> None:
        collector = duplex.EventCollector()
        async with connected(duplex, port) as client:
            collecting = asyncio.create_task(collector.consume(client))
            first_token = client.resume_token
            await say(client)
            response = await next_response(client)
            audio = response.audio()
            got = b""
            for _ in range(drops):
                got += await anext(audio)
                client.sockets[-1].transport.abort()
                await client.wait_for("connection.resumed", timeout_s=WAIT_S)
            async for chunk in audio:
                got += chunk
            assert len(got) == 20 * 200 * 24_000 // 500
            assert response.done_event.raw["response"]["status"] == "completed"
            assert client.resume_token != first_token
            await client.close()
            await collecting
        numbers = [e["server_event_seq"] for e in collector.events if "server_event_seq" in e]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))

    talk(story, duplex, answer_units=20)


def test_an_interruption_right_before_a_torn_socket_is_not_undone_by_the_resume(duplex: Any) -> None:
    async def story(duplex: Any, port: int) -> None:
        collector = duplex.EventCollector()
        async with connected(duplex, port) as client:
            collecting = asyncio.create_task(collector.consume(client))
            await say(client)
            response = await next_response(client)
            await anext(response.audio())
            await client.send({"type": "barge_in"})
            client.sockets[-1].transport.abort()
            await client.wait_for("connection.resumed", timeout_s=WAIT_S)
            await client.send({"type": "input.cancel"})
            await asyncio.wait_for(response.wait(), WAIT_S)
            await client.close()
            await collecting
        ends = [e for e in collector.events if e["type"] == "response.done"]
        assert [e["response"]["status"] for e in ends] == ["cancelled"]

    talk(story, duplex, answer_units=200)
