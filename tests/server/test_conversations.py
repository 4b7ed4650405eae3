"""Whole conversations through the front: OpenAI's dialect and the duplex one, over memory streams and virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed

from adapters.server.conversation import Conversation
from adapters.server.settings import ServerSettings
from tests.server.servers import Client, open_test_server, quiet

GA = "/v1/realtime?model=gpt-realtime"
DUPLEX = "/v1/realtime?duplex=1&autostart=0"
DETECT = {"turn_detection": {"type": "server_vad"}}


async def begin(client: Client, **session: Any) -> dict[str, Any]:
    """Open a duplex session: its session.created."""
    await client.send("session.update", session={**DETECT, **session})
    created = await client.until("session.created")
    await client.until("session.updated")
    return created


async def test_an_openai_client_is_greeted_heard_and_answered() -> None:
    async with open_test_server() as server, server.connect(GA) as client:
        created = await client.receive()
        assert created["type"] == "session.created"
        assert created["event_id"]
        assert created["session"]["unit_ms"] > 0
        assert created["session"]["recommended_prebuffer_ms"] >= 0
        await client.say()
        done = await client.until("response.done")
        assert done["response"]["status"] == "completed"
        assert "turn 1" in done["response"]["output"][0]["content"][0]["transcript"]
        assert all(event["event_id"] for event in client.seen)
        assert client.types().count("response.output_audio.delta") > 1


async def test_two_updates_in_a_row_are_both_kept() -> None:
    async with open_test_server() as server, server.connect(GA) as client:
        await client.send("session.update", session={"type": "realtime", "instructions": "be brief"})
        await client.send("session.update", session={"type": "realtime", "tracing": "auto"})
        first, second = await client.until("session.updated"), await client.until("session.updated")
        assert first["session"]["instructions"] == second["session"]["instructions"] == "be brief"
        assert second["session"]["tracing"] == "auto"


async def test_audio_behind_an_update_is_read_in_the_new_format() -> None:
    async with open_test_server() as server, server.connect(GA) as client:
        await client.send("session.update", session={"audio": {"input": {"format": {"type": "audio/pcmu"}}}})
        await client.send("input_audio_buffer.append", audio="////" * 101)
        await client.send("input_audio_buffer.append", audio="not base64")
        await client.until("error")
        (session,) = server.supervisor.sessions.values()
        assert session.state.input.samples == 303


async def test_bad_frames_are_answered_and_the_connection_lives() -> None:
    async with open_test_server() as server, server.connect(DUPLEX, 16_000) as client:
        await begin(client)
        await client.socket.send_message("{")
        await client.socket.send_message(b"\0\1\2")
        await client.send("no.such.event", event_id="e3")
        await client.send("input_audio_buffer.append", audio="AAA", event_id="e4")
        await client.send("input_audio_buffer.append", audio="AA==", event_id="e5")
        await client.socket.send_message('"' + "x" * (15 * 1024 * 1024) + '"')
        errors = [(await client.until("error"))["error"] for _ in range(6)]
        assert [(error["code"], error["param"], error["event_id"]) for error in errors] == [
            ("invalid_json", None, None),
            ("bad_event", None, None),
            ("unknown_event", "type", "e3"),
            ("bad_audio", "audio", "e4"),
            ("bad_audio", "audio", "e5"),
            ("event_too_large", None, None),
        ]
        await client.send("session.heartbeat")
        assert (await client.until("session.heartbeat_ack"))["type"]


async def test_a_barge_in_is_answered_with_the_end_of_the_answer() -> None:
    async with open_test_server(answer_units=200) as server, server.connect(DUPLEX, 16_000) as client:
        await begin(client)
        await client.say()
        await client.until("response.output_audio.delta")
        await client.send("barge_in")
        done = await client.until("response.done")
        assert done["response"]["status_details"] == {"type": "cancelled", "reason": "barge_in"}
        assert b"duologue_barge_in_seconds_count 1.0" in server.application.metrics.render()


@pytest.mark.parametrize("path", ["/v1/realtime?duplex=1", DUPLEX])
async def test_a_silent_duplex_client_is_let_go(path: str) -> None:
    async with open_test_server() as server, server.connect(path) as client:
        error = await client.receive()
        assert error["error"]["code"] == "config_timeout"
        assert trio.current_time() >= 10
        assert (await client.closed())[0] == 1008
        assert not server.supervisor.sessions


async def test_a_model_in_the_url_starts_a_duplex_session_at_once() -> None:
    async with open_test_server() as server, server.connect("/v1/realtime?duplex=1&model=scripted") as client:
        assert (await client.receive())["type"] == "session.created"
        updated = await client.receive()
        assert (updated["type"], updated["server_event_seq"]) == ("session.updated", 1)


async def test_any_other_first_event_opens_a_session_and_is_carried_out() -> None:
    async with open_test_server() as server, server.connect(DUPLEX) as client:
        await client.send("conversation.item.retrieve", item_id="nope")
        assert (await client.until("error"))["error"]["code"] == "item_not_found"
        assert client.types()[:2] == ["session.created", "session.updated"]


async def test_a_first_frame_that_is_no_event_is_explained() -> None:
    async with open_test_server() as server, server.connect(DUPLEX) as client:
        await client.socket.send_message("nonsense")
        assert (await client.receive())["error"]["code"] == "invalid_json"
        await begin(client)


async def test_a_configuration_that_cannot_be_opens_no_session() -> None:
    async with open_test_server() as server, server.connect(DUPLEX) as client:
        await client.send("session.update", session={"input_audio_format": "mp3"}, event_id="mine")
        error = (await client.receive())["error"]
        assert (error["code"], error["param"], error["event_id"]) == (
            "unsupported_audio_format",
            "session.input_audio_format",
            "mine",
        )
        assert (await client.closed())[0] == 1008
        assert not server.supervisor.sessions


async def test_a_dropped_client_resumes_and_the_stream_has_no_hole() -> None:
    async with open_test_server(answer_units=40) as server:
        async with server.connect(DUPLEX, 16_000) as client:
            created = await begin(client)
            await client.say()
            await client.until("response.output_audio.delta")
            before = client.seen
        session_id = created["session"]["id"]
        last = max(event.get("server_event_seq", 0) for event in before)
        async with server.connect("/v1/realtime?duplex=1&resume=1", 16_000) as again:
            await resume(again, session_id, created["resume_token"], last)
            resumed = await again.receive()
            assert (resumed["type"], resumed["attachment_generation"]) == ("session.resumed", 2)
            assert resumed["resume_token"] != created["resume_token"]
            await again.until("response.done")
        numbers = [e["server_event_seq"] for e in [*before, *again.seen] if "server_event_seq" in e]
        assert numbers == list(range(1, numbers[-1] + 1))


async def test_an_older_client_is_told_that_it_was_replaced() -> None:
    async with open_test_server() as server, server.connect(DUPLEX, 16_000) as old:
        created = await begin(old)
        async with server.connect(DUPLEX, 16_000) as new:
            await resume(new, created["session"]["id"], created["resume_token"], 1)
            assert (await new.receive())["type"] == "session.resumed"
            replaced = await old.until("session.replaced")
            assert replaced["attachment_generation"] == 1
            assert await old.closed() == (1000, "session_replaced")
            await new.send("session.heartbeat")
            await new.until("session.heartbeat_ack")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"session_id": "duplex-unknown"}, "session_resume_expired"),
        ({"resume_token": "wrong"}, "invalid_resume_token"),
        ({"last_received_server_event_seq": 999}, "session_resume_conflict"),
        ({"last_received_server_event_seq": -1}, "invalid_session_resume"),
        ({"resume_token": 5}, "invalid_session_resume"),
    ],
)
async def test_a_resume_that_cannot_be(change: dict[str, Any], code: str) -> None:
    async with open_test_server() as server:
        async with server.connect(DUPLEX) as client:
            created = await begin(client)
        good = {
            "session_id": created["session"]["id"],
            "resume_token": created["resume_token"],
            "last_received_server_event_seq": 1,
        }
        async with server.connect(DUPLEX) as client:
            await client.send("session.resume", **{**good, **change})
            assert (await client.receive())["error"]["code"] == code
            assert (await client.closed())[0] == 1008
        async with server.connect(DUPLEX) as client:  # nothing was harmed by it
            await client.send("session.resume", **good)
            assert (await client.receive())["type"] == "session.resumed"


async def resume(client: Client, session_id: str, token: str, number: int) -> None:
    await client.send(
        "session.resume", session_id=session_id, resume_token=token, last_received_server_event_seq=number
    )


@pytest.mark.parametrize(("server_max", "model_max"), [(1, 64), (64, 1), (None, 1)])
async def test_a_full_server_says_so_and_when_to_come_back(server_max: int | None, model_max: int) -> None:
    """Full is what the operator says, or what the workers that are up can hold."""
    settings = ServerSettings(model="scripted", sessions_max=server_max)
    async with open_test_server(settings, sessions_max=model_max) as server, server.connect(GA) as first:
        await first.receive()
        async with server.connect(GA) as second:
            error = (await second.receive())["error"]
            assert (error["code"], error["type"], error["retryable"]) == (
                "resource_exhausted",
                "rate_limit_error",
                True,
            )
            assert error["retry_after_ms"] > 0
            assert (await second.closed())[0] == 1013
        await first.send("input_audio_buffer.commit")
        await first.until("error")


async def test_closing_a_session_says_so_last() -> None:
    async with open_test_server() as server, server.connect(DUPLEX) as client:
        await begin(client)
        await client.send("session.close", reason="done")
        assert await client.closed() == (1000, "done")
        assert client.types()[-1] == "session.closed"


async def test_what_one_handler_breaks_is_its_own(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    async with open_test_server() as server, server.connect(GA) as other:
        await other.receive()
        translate = server.application.service.supervisor.open  # type: ignore[union-attr]

        async def broken(*arguments: Any) -> Any:
            raise ZeroDivisionError("a fault of ours")

        monkeypatch.setattr(server.supervisor, "open", broken)
        async with server.connect(GA) as victim:
            with pytest.raises(ConnectionClosed):
                await victim.receive()
        assert "a connection failed" in caplog.text
        monkeypatch.setattr(server.supervisor, "open", translate)
        await other.say()
        await other.until("response.done")
        async with server.connect(GA) as third:
            assert (await third.receive())["type"] == "session.created"


async def test_a_fault_of_ours_in_mid_conversation_does_not_look_like_a_good_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("a fault of ours")

    async with open_test_server() as server, server.connect(DUPLEX) as client:
        await begin(client)
        monkeypatch.setattr(Conversation, "_carry_out", broken)
        await client.send("session.heartbeat")
        assert (await client.closed())[0] == 1011


async def test_draining_lets_an_answer_finish_and_sends_clients_elsewhere() -> None:
    async with open_test_server(answer_units=10) as server, server.connect(DUPLEX, 16_000) as client:
        await begin(client)
        await client.say()
        await client.until("response.created")
        server.application.draining = True
        assert (await server.get("/readyz"))[0] == 503
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.supervisor.drain, 30.0)
            assert await client.closed() == (1012, "server_restart")
        done = next(event for event in client.seen if event["type"] == "response.done")
        assert done["response"]["status"] == "completed"


async def test_what_a_client_sends_is_in_no_log(caplog: Any) -> None:
    caplog.set_level("DEBUG", "duologue")
    async with open_test_server() as server, server.connect(GA) as client:
        await client.send("session.update", session={"instructions": "secret word"})
        await client.send("input_audio_buffer.append", audio=quiet(10, 24_000), secret_word="secret word")
        await client.send("made.up", text="secret word")
        await client.until("error")
    assert "secret word" not in caplog.text
    assert json.dumps(client.seen).count("secret word") == 1


@pytest.mark.parametrize("silent_s", [5.0, 30.0])
async def test_for_how_long_a_model_may_be_silent_is_the_operators_choice(silent_s: float) -> None:
    settings = ServerSettings(model="scripted", silent_s=silent_s)
    async with open_test_server(settings, silent_at_unit=2, fault_epoch=1) as server, server.connect() as client:
        await client.say()
        await client.until("response.output_audio.delta")
        began = trio.current_time()
        done = (await client.until("response.done"))["response"]
        assert done["status_details"]["error"]["code"] == "model_silent"
        assert silent_s - 1 < trio.current_time() - began < silent_s + 2
