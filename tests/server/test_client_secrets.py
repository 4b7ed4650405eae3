"""Ephemeral keys: made with a real key, good for a while, for sessions that begin as they say."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.server.access import identify
from adapters.server.admission import Limits
from adapters.server.client_secrets import ClientSecrets
from adapters.server.http import Request
from adapters.server.settings import ServerSettings
from tests.server.servers import Server, open_test_server
from tests.server.test_front import upgrade

PATH = "/v1/realtime/client_secrets"
SETTINGS = ServerSettings(model="scripted", api_keys=("sk-right",))
KEY = "Authorization: Bearer sk-right"

KEPT = ClientSecrets(("a",))
"""Made once: each costs one scrypt."""


async def post(server: Server, body: object, *lines: str) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {PATH} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(data)}", *lines]
    got = await server.ask("\r\n".join([*head, "", ""]).encode() + data)
    top, _, answer = got.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(answer)


async def test_a_browser_connects_with_one_and_its_session_begins_as_it_says() -> None:
    async with open_test_server(SETTINGS) as server:
        body = {
            "expires_after": {"anchor": "created_at", "seconds": 60},
            "session": {"type": "realtime", "instructions": "Be kind."},
        }
        status, made = await post(server, body, KEY)
        assert status == 200
        assert made["value"].startswith("ek_")
        assert made["session"]["instructions"] == "Be kind."
        proposed = f"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{made['value']}"
        assert (await upgrade(server, "/v1/realtime", proposed)).startswith(b"HTTP/1.1 101 ")
        headers = ((b"Authorization", f"Bearer {made['value']}".encode()),)
        async with server.connect("/v1/realtime?model=scripted", headers=headers) as client:
            assert (await client.receive())["session"]["instructions"] == "Be kind."


async def test_it_is_good_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_test_server(SETTINGS) as server:
        _, made = await post(server, {"expires_after": {"anchor": "created_at", "seconds": 10}}, KEY)
        bearer = f"Authorization: Bearer {made['value']}"
        assert (await server.get("/v1/models", bearer))[0] == 200
        monkeypatch.setattr("adapters.server.access.time.time", lambda: made["expires_at"] + 0.1)
        assert (await server.get("/v1/models", bearer))[0] == 401


async def test_only_a_real_key_makes_one() -> None:
    async with open_test_server(SETTINGS) as server:
        assert (await post(server, {}))[0] == 401
        assert (await post(server, {}, "Authorization: Bearer sk-wrong"))[0] == 401
        _, made = await post(server, b"", KEY)
        assert (await post(server, {}, f"Authorization: Bearer {made['value']}"))[0] == 401
        assert (await server.get(PATH, KEY))[0] == 405


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"\xff\xfe", None),
        ({"expires_after": {"anchor": "now"}}, "expires_after.anchor"),
        ({"expires_after": {"seconds": 5}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"session": []}, "session"),
        ({"session": {"instructions": 5}}, "session.instructions"),
        ({"session": {"instructions": "x" * 10_000}}, "session"),
        ({"session": {"type": "transcription"}}, "session.type"),
    ],
)
async def test_a_request_that_cannot_be_is_explained(body: object, param: str | None) -> None:
    async with open_test_server(SETTINGS) as server:
        status, answer = await post(server, body, KEY)
        assert status == 400
        assert answer["error"]["code"]
        assert answer["error"].get("param") == param


async def test_its_sessions_count_for_the_key_that_made_it() -> None:
    settings = ServerSettings(model="scripted", api_keys=("sk-right",), limits=Limits(sessions_per_key=1))
    async with open_test_server(settings) as server:
        _, made = await post(server, {}, KEY)
        path, real = "/v1/realtime?model=scripted", ((b"Authorization", b"Bearer sk-right"),)
        ephemeral = ((b"Authorization", f"Bearer {made['value']}".encode()),)
        async with server.connect(path, headers=real) as client:
            await client.receive()
            async with server.connect(path, headers=ephemeral) as second:
                assert (await second.receive())["error"]["code"] == "rate_limit_exceeded"


def test_a_real_key_beside_a_secret_goes_first() -> None:
    """Whoever sends both is not held to how the secret's sessions begin."""
    kept = ClientSecrets(SETTINGS.api_keys)
    secret, _ = kept.make(kept.owner("sk-right"), {"instructions": "Be kind."}, 60, int(time.time()))
    browser = {"sec-websocket-protocol": f"realtime, openai-insecure-api-key.{secret}"}
    both = {**browser, "authorization": "Bearer sk-right"}
    for headers, ephemeral in ((browser, True), (both, False)):
        identity = identify(Request("GET", "/", {}, headers), SETTINGS, kept)
        assert identity is not None
        assert (identity.key, identity.ephemeral) == (kept.owner("sk-right"), ephemeral)


def test_another_server_of_the_same_keys_takes_it_and_one_of_others_does_not() -> None:
    made, _ = ClientSecrets(("a", "b")).make("owner", {"voice": "tone"}, 60, 1_000)
    read = ClientSecrets(("b", "a")).read(made, 1_059)
    assert read is not None
    assert (read.key, read.session) == ("owner", {"voice": "tone"})
    assert ClientSecrets(("b", "a")).read(made, 1_060) is None
    assert ClientSecrets(("a",)).read(made, 1_000) is None
    assert ClientSecrets(()).read(made, 1_000) is None


def test_nothing_in_one_helps_to_guess_a_key() -> None:
    """Whatever could be computed from a key at once, without scrypt: the secret is neither signed by that nor tells it."""
    key = "sk-right"
    server = ClientSecrets((key,))
    made, _ = server.make(server.owner(key), {}, 60, 1_000)
    body, _, mac = made.removeprefix("ek_").rpartition(".")
    told = base64.urlsafe_b64decode(body + "==")
    assert json.loads(told)["k"] == ClientSecrets((key,)).owner(key) != ClientSecrets((key, "b")).owner(key)
    for name in ("md5", "sha1", "sha256", "sha512"):
        assert hashlib.new(name, key.encode()).hexdigest()[:8].encode() not in told
    for cheap in (key.encode(), hmac.digest(key.encode(), b"duologue client secret", "sha256")):
        signed = hmac.digest(cheap, body.encode(), "sha256")
        assert base64.urlsafe_b64encode(signed).decode().rstrip("=") != mac


def test_without_keys_no_two_servers_agree() -> None:
    made, _ = ClientSecrets(()).make("", {}, 60, 1_000)
    assert ClientSecrets(()).read(made, 1_000) is None
    assert ClientSecrets(("a\nb",)).owner("x") != ClientSecrets(("a", "b")).owner("x")


@given(place=st.integers(0, 150), letter=st.sampled_from("abcXYZ019-_.é"))
def test_a_changed_one_is_worth_nothing(place: int, letter: str) -> None:
    made, _ = KEPT.make("owner", {}, 60, 1_000)
    changed = made[: place % len(made)] + letter + made[place % len(made) + 1 :]
    assert changed == made or KEPT.read(changed, 1_000) is None
