"""What no client should send, to each dialect: a clear error that names the field, nothing half-applied, and a session that
lives on. What breaks the WebSocket protocol itself: test_protocol_violations.py."""

from __future__ import annotations

import json
import math
import struct
import threading
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from adapters.server.application import MESSAGE_BYTES_MAX
from adapters.server.conversation import BIG_CHARS
from adapters.wire import fields
from adapters.wire.fields import FRAME_BYTES_MAX
from adapters.wire.openai import translation
from tests.server.servers import Client, open_test_server

GA = "/v1/realtime?model=gpt-realtime"
DUPLEX = "/v1/realtime?duplex=1&model=scripted"
APPEND = "input_audio_buffer.append"


def floats(*values: float) -> str:
    return b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def event(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, "event_id": "mine", **fields})


BAD: list[tuple[str, str | bytes, str, str | None]] = [
    ("no json", "{", "invalid_json", None),
    ("no object", "[1]", "bad_event", None),
    ("no type", '{"event_id": "mine"}', "bad_event", "type"),
    ("a number that is none", '{"type": "x", "a": NaN}', "invalid_json", None),
    ("a lone surrogate", '{"type": "x", "a": "\\ud800"}', "*", None),
    ("deep objects", event("session.update", session=json.loads('{"a":' * 40 + "1" + "}" * 40)), "invalid_json", None),
    ("very deep arrays", '{"type":"x","a":' + "[" * 100_000 + "]" * 100_000 + "}", "invalid_json", None),
    ("a binary frame", b"\x00\x01\xff", "bad_event", None),
    ("a binary frame of good JSON", event("response.cancel").encode(), "bad_event", None),
    ("audio that is no base64", event(APPEND, audio="$$$"), "bad_audio", "audio"),
    ("half a sample", event(APPEND, audio="AAAA"), "bad_audio", "audio"),
    ("audio that is no text", event(APPEND, audio=[1]), "invalid_value", "audio"),
    ("no audio", event(APPEND), "missing_required_parameter", "audio"),
    (
        "a rate of nobody's",
        event("session.update", session={"audio": {"input": {"format": {"type": "audio/pcm", "rate": 1}}}}),
        "invalid_value",
        "session.audio.input.format.rate",
    ),
    (
        "an endless rate",
        '{"type":"session.update","session":{"audio":{"input":{"format":{"type":"audio/pcm","rate":1e400}}}}}',
        "*",
        None,
    ),
    (
        "one good field and one bad",
        event("session.update", session={"instructions": "half", "voice": 5}),
        "invalid_value",
        "session.voice",
    ),
]
RENAMED = {
    "invalid_value": {"bad_event"},
    "missing_required_parameter": {"bad_event"},
    "bad_audio": {"invalid_value"},
}
"""Codes that one of the dialects has another name for."""


@pytest.mark.parametrize("path", [GA, DUPLEX], ids=["openai", "duplex"])
@pytest.mark.parametrize(("message", "code", "param"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
async def test_it_is_told_what_is_wrong_and_lives(
    path: str, message: str | bytes, code: str, param: str | None
) -> None:
    async with open_test_server() as server, server.connect(path) as client:
        await client.until("session.created")
        (session,) = server.supervisor.sessions.values()
        before = session.state.config, session.state.input.samples
        await client.socket.send_message(message)
        error = (await client.until("error"))["error"]
        if code != "*":
            assert error["code"] in {code, *RENAMED.get(code, ())}
            assert error["param"] == param
        assert error["message"]
        assert (session.state.config, session.state.input.samples) == before
        await lives(client)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("path", [GA, DUPLEX], ids=["openai", "duplex"])
async def test_samples_that_are_not_numbers(path: str, value: float) -> None:
    async with open_test_server() as server, server.connect(path) as client:
        await client.until("session.created")
        shape = {"audio": {"input": {"format": {"type": "pcm_f32le", "rate": 16_000}}}}
        await client.send("session.update", session=shape)
        await client.until("session.updated")
        while client.seen[-1]["session"]["audio"]["input"]["format"]["type"] != "pcm_f32le":
            await client.until("session.updated")
        await client.send(APPEND, audio=floats(0.0, 0.5, value))
        error = (await client.until("error"))["error"]
        assert (error["code"], error["param"]) == ("invalid_value" if path == GA else "bad_audio", "audio")
        (session,) = server.supervisor.sessions.values()
        assert session.state.input.samples == 0
        await client.send(APPEND, audio=floats(0.0, 3e38, -3e38, 1e-45))  # loud and tiny, but numbers
        await lives(client)
        assert session.state.input.samples == 4


@pytest.mark.realtime
@pytest.mark.parametrize("path", [GA, DUPLEX], ids=["openai", "duplex"])
async def test_more_than_15_mib_are_refused(path: str) -> None:
    async with open_test_server() as server, server.connect(path) as client:
        await client.until("session.created")
        await client.socket.send_message('"' + "x" * FRAME_BYTES_MAX)
        error = (await client.until("error"))["error"]
        assert (error["code"], error["param"]) == ("event_too_large", None)
        await lives(client)


@pytest.mark.realtime
async def test_a_chunk_of_nearly_15_mib_is_heard() -> None:
    async with open_test_server() as server, server.connect(GA) as client:
        await client.until("session.created")
        await client.send(APPEND, audio=b64encode(bytes(11 * 1024 * 1024)).decode())
        await lives(client)
        (session,) = server.supervisor.sessions.values()
        assert session.state.input.samples == 11 * 1024 * 512


@pytest.mark.realtime
async def test_a_chunk_of_10_mib_over_an_answer_costs_neither_of_them_anything() -> None:
    async with open_test_server(answer_units=10) as server, server.connect(GA) as client:
        await client.until("session.created")
        await client.say()
        await client.until("response.output_audio.delta")
        await client.send(APPEND, audio=b64encode(bytes(7_500 * 1024)).decode())
        assert (await client.until("response.done"))["response"]["status"] == "completed"
        assert client.types().count("response.output_audio.delta") == 10
        await lives(client)
        assert "error" not in client.types()


@pytest.mark.realtime
async def test_a_big_message_is_worked_on_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, checking and naming what is in it: nobody else waits for that."""
    threads: dict[bool, set[int]] = {False: set(), True: set()}

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(what: str | bytes) -> Any:
            threads[len(what) >= BIG_CHARS].add(threading.get_ident())
            return function(what)

        return noted

    monkeypatch.setattr(fields, "parse_event", noting(fields.parse_event))
    monkeypatch.setattr(translation, "body_digest", noting(translation.body_digest))
    async with open_test_server() as server, server.connect(GA) as client:
        await client.until("session.created")
        for size in (BIG_CHARS // 2, BIG_CHARS):
            await client.send(APPEND, audio=b64encode(bytes(size)).decode())
        await lives(client)
        (session,) = server.supervisor.sessions.values()
        assert session.state.input.samples == BIG_CHARS * 3 // 4
    assert threads[False] == {threading.get_ident()}
    assert threads[True]
    assert threads[True].isdisjoint(threads[False])


async def test_more_than_a_message_may_have_ends_its_connection() -> None:
    async with open_test_server() as server, server.connect(GA) as client, server.connect(GA) as other:
        await client.until("session.created")
        await client.socket.send_message("x" * (MESSAGE_BYTES_MAX + 1))
        assert (await client.closed())[0] == 1009
        await other.until("session.created")
        await lives(other)


async def test_the_event_loops_lag_is_there_to_be_seen() -> None:
    async with open_test_server() as server:
        page = (await server.get("/metrics"))[2].decode()
    assert "duologue_event_loop_lag_seconds_bucket" in page


async def lives(client: Client) -> None:
    await client.send("session.update", session={"instructions": "still here"})
    while (await client.until("session.updated"))["session"]["instructions"] != "still here":
        pass
