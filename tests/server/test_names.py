"""Names that a client asks for: models, voices, a voice of its own. What is not there is refused, and what is, is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.server.settings import ServerSettings
from adapters.wire.served import OPENAI_VOICES
from tests.server.servers import Client, open_test_server
from tests.server.test_front import upgrade

GA, DUPLEX = "/v1/realtime", "/v1/realtime?duplex=1"
BOTH = pytest.mark.parametrize("path", [GA, DUPLEX], ids=["openai", "duplex"])
SOUND = "data:audio/wav;base64,UklGRgAAAABXQVZF"


async def opened(client: Client, path: str, **session: Any) -> dict[str, Any]:
    """The first answer to a session that is asked for."""
    if path == GA:
        await client.until("session.created")
    await client.send("session.update", session=session)
    while True:
        event = await client.receive()
        if event["type"] in ("session.updated", "error"):
            return event


# -- models -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [f"{GA}?", f"{DUPLEX}&", "/v1/duplex?"])
@pytest.mark.parametrize("name", ["nonsense", "gpt-4o", "cascade", "SCRIPTED", "m" * 300])
async def test_a_model_that_is_not_here_is_refused_before_there_is_a_socket(path: str, name: str) -> None:
    async with open_test_server() as server:
        head, _, body = (await upgrade(server, f"{path}model={name}")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        error = json.loads(body)["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "there is: scripted" in error["message"]


@pytest.mark.parametrize("name", ["scripted", "gpt-realtime", "gpt-realtime-2.1", "gpt-4o-realtime-preview-2025-06-03"])
@pytest.mark.parametrize("path", [f"{GA}?", f"{DUPLEX}&"], ids=["openai", "duplex"])
async def test_the_models_own_name_and_openais_open_a_session(path: str, name: str) -> None:
    async with open_test_server() as server, server.connect(f"{path}model={name}") as client:
        assert (await client.until("session.created"))["session"]["model"] == "scripted"


async def test_an_operator_may_name_more() -> None:
    settings = ServerSettings(model="scripted", model_aliases=("openbmb/MiniCPM-o-*",))
    async with open_test_server(settings) as server:
        listed = json.loads((await server.get("/v1/models"))[2])["data"][0]
        assert (listed["id"], listed["aliases"]) == ("scripted", ["openbmb/MiniCPM-o-*"])
        async with server.connect(f"{DUPLEX}&model=openbmb/MiniCPM-o-4_5") as client:
            await client.until("session.created")
        refused = await upgrade(server, f"{GA}?model=gpt-realtime")
        assert refused.startswith(b"HTTP/1.1 404 ")


@BOTH
async def test_a_model_in_the_sessions_settings_is_checked_too(path: str) -> None:
    async with open_test_server() as server, server.connect(path) as client:
        error = (await opened(client, path, model="nonsense", instructions="half"))["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "session.model")
        if path == DUPLEX:  # it opens no session
            assert (await client.closed())[0] == 1008
            assert not server.supervisor.sessions
            return
        (session,) = server.supervisor.sessions.values()
        assert session.state.config.instructions == ""
        for name in ("gpt-realtime-2.1", "scripted"):  # as OpenAI's agents do, whatever the URL says
            await client.send("session.update", session={"model": name, "instructions": name})
            assert (await client.until("session.updated"))["session"]["instructions"] == name


async def test_a_client_secret_is_not_made_for_a_model_that_is_not_here() -> None:
    settings = ServerSettings(model="scripted", api_keys=("sk-one",))
    async with open_test_server(settings) as server:
        for session, status in (({"model": "nonsense"}, b"400"), ({"voice": "nobody"}, b"400"), ({}, b"200")):
            body = json.dumps({"session": session}).encode()
            head = "POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            lines = f"{head}Authorization: Bearer sk-one\r\nContent-Length: {len(body)}\r\n\r\n"
            assert (await server.ask(lines.encode() + body)).startswith(b"HTTP/1.1 " + status)


# -- voices -------------------------------------------------------------------------------------------------------


@BOTH
async def test_a_voice_that_the_model_lacks_is_refused_and_the_others_are_named(path: str) -> None:
    async with open_test_server() as server, server.connect(path) as client:
        error = (await opened(client, path, voice="nobody"))["error"]
        assert (error["code"], error["param"]) == ("invalid_voice", "session.voice")
        assert error["message"].endswith(": tone.")


@BOTH
@pytest.mark.parametrize(
    ("asked", "has"),
    [("tone", "tone"), ("Tone", "tone"), ("tone.pt", "tone"), ("default", ""), *((v, "") for v in OPENAI_VOICES)],
)
async def test_the_models_voices_and_openais_are_taken(path: str, asked: str, has: str) -> None:
    async with open_test_server() as server, server.connect(path) as client:
        updated = await opened(client, path, audio={"output": {"voice": asked}})
        assert updated["type"] == "session.updated"
        (session,) = server.supervisor.sessions.values()
        assert session.state.config.voice == has


# -- a voice of the client's own ----------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [f"{GA}?model=gpt-realtime", f"{DUPLEX}&model=scripted"], ids=["openai", "duplex"])
@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"ref_audio": SOUND}, "session.ref_audio"),
        ({"extra_body": {"tts_ref_audio": SOUND}}, "session.extra_body.tts_ref_audio"),
        ({"ref_audio_path": "/etc/passwd"}, "session.ref_audio_path"),
    ],
)
async def test_a_session_that_stands_takes_no_other_voice_and_says_so(
    url: str, session: dict[str, Any], param: str
) -> None:
    async with open_test_server(inputs="audio,text,reference_audio") as server, server.connect(url) as client:
        await client.until("session.created")
        await client.send("session.update", session={"instructions": "half", **session})
        error = (await client.until("error"))["error"]
        assert (error["code"], error["param"]) == ("ref_audio_update_unsupported", param)
        (live,) = server.supervisor.sessions.values()
        assert live.state.config.instructions == ""
        await client.send("session.update", session={"instructions": "whole", "ref_audio": None})
        assert (await client.until("session.updated"))["session"]["instructions"] == "whole"


async def test_a_path_of_the_servers_is_no_voice() -> None:
    async with open_test_server(inputs="audio,text,reference_audio") as server, server.connect(DUPLEX) as client:
        error = (await opened(client, DUPLEX, ref_audio_path="/etc/passwd"))["error"]
        assert (error["code"], error["param"]) == ("unsupported_ref_audio_path", "session.ref_audio_path")
