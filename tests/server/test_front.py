"""The HTTP front: what is answered where, limits in bytes and time, refused upgrades, keys and origins."""

from __future__ import annotations

import json
import ssl
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from adapters import page
from adapters.server.admission import Limits
from adapters.server.application import Application
from adapters.server.http import LINGER_S
from adapters.server.metrics import Metrics
from adapters.server.settings import ServerSettings, is_loopback
from store.memory import Fault, no_faults
from tests.server.servers import Server, open_test_server

UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


async def upgrade(
    server: Server, path: str, *lines: str, base: tuple[str, ...] = UPGRADE, host: str = "localhost"
) -> bytes:
    """The first bytes that answer an upgrade."""
    stream = server.dial()
    head = [f"GET {path} HTTP/1.1", f"Host: {host}", *base, *lines]
    await stream.send_all("\r\n".join([*head, "", ""]).encode("latin-1"))
    got = await stream.receive_some(65_536)
    await stream.aclose()
    return bytes(got)


@pytest.mark.parametrize(
    ("line", "host", "named"),
    [
        ("Sec-WebSocket-Protocol: realtime, \u00fcber", "server.test", "sec-websocket-protocol"),
        ("Sec-WebSocket-Extensions: \u00ff", "server.test", "sec-websocket-extensions"),
        ("Connection: \u00ff", "server.test", "connection"),
        ("X: y", "xn--\u00ff", "host"),
    ],
)
async def test_headers_that_the_websocket_library_cannot_read(line: str, host: str, named: str, caplog: Any) -> None:
    """They are the client's fault, not a fault of ours that ends a connection without a word."""
    async with open_test_server(ServerSettings(model="scripted", host="0.0.0.0")) as server:
        got = await upgrade(server, "/v1/realtime", line, host=host)
        assert got.startswith(b"HTTP/1.1 400 ")
        assert f"'{named}'".encode() in got
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_the_page_and_its_assets() -> None:
    async with open_test_server() as server:
        for path in ("/", "/app.js", "/style.css"):
            status, headers, body = await server.get(path)
            asset = page.asset_for_path(path)
            assert asset is not None
            assert (status, body, headers["content-type"]) == (200, asset.body, asset.content_type.lower())
            assert headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in headers["content-security-policy"]
            status, _, body = await server.get(path, f"If-None-Match: {asset.etag}")
            assert (status, body) == (304, b"")
        status, headers, body = await server.get("/", method="HEAD")
        assert (status, body) == (200, b"")
        assert int(headers["content-length"]) > 0


async def test_health_readiness_models_and_metrics() -> None:
    async with open_test_server() as server:
        assert (await server.get("/healthz"))[0] == 200
        assert json.loads((await server.get("/readyz"))[2]) == {"ready": True}
        assert json.loads((await server.get("/v1/models"))[2])["data"][0]["id"] == "scripted"
        status, headers, body = await server.get("/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        for name in (
            "sessions",
            "responses",
            "barge_in_seconds",
            "first_audio_seconds",
            "stale_outputs_dropped",
            "event_loop_lag_seconds",
            "outbox_bytes",
            "store_queue_items",
            "store_append_seconds",
        ):
            assert f"# TYPE duologue_{name}".encode() in body, name


async def test_a_store_that_takes_no_writes_makes_the_server_unready_until_it_does() -> None:
    async with open_test_server() as server, server.connect() as client:
        await client.receive()
        server.store.policy = lambda request: Fault(fail_before=True)
        while (answer := await server.get("/readyz"))[0] == 200:
            await trio.sleep(0.1)
        status, headers, body = answer
        assert status == 503
        told = json.loads(body)
        assert (told["ready"], told["reason"], told["detail"]) == (False, "store_unavailable", "injected: not written")
        assert headers["retry-after"]
        assert (await server.get("/healthz"))[0] == 200, "nobody is helped by a restart"
        server.store.policy = no_faults
        while (await server.get("/readyz"))[0] != 200:
            await trio.sleep(0.1)


@pytest.mark.parametrize("queue_max", [0, 1])
async def test_a_server_with_no_place_left_is_not_ready_until_there_is_one(queue_max: int) -> None:
    settings = ServerSettings(model="scripted", limits=Limits(queue_max=queue_max))
    async with open_test_server(settings, sessions_max=1) as server:
        service = server.application.service
        assert service is not None
        async with server.connect() as client, trio.open_nursery() as nursery:
            await client.receive()
            for _ in range(queue_max):
                assert (await server.get("/readyz"))[0] == 200, "whoever comes now may wait in line"
                nursery.start_soon(wait_in_line, server)
                while service.admission.queue_length < queue_max:
                    await trio.sleep(0.1)
            status, headers, body = await server.get("/readyz")
            assert (status, json.loads(body)) == (
                503,
                {"ready": False, "reason": "sessions_full", "detail": "1 of 1 sessions, 1 of 1 workers up"},
            )
            assert headers["retry-after"]
            nursery.cancel_scope.cancel()
        while (await server.get("/readyz"))[0] != 200:
            await trio.sleep(0.1)


async def wait_in_line(server: Server) -> None:
    async with server.connect() as client:
        while True:
            await client.receive()


async def test_while_the_model_loads_the_server_says_so() -> None:
    application = Application(ServerSettings(model="scripted"), Metrics())
    async with trio.open_nursery() as nursery:
        server = Server(application, None, None, nursery)  # type: ignore[arg-type]
        status, headers, body = await server.get("/readyz")
        assert (status, json.loads(body)["reason"]) == (503, "loading")
        assert headers["retry-after"]
        assert (await server.get("/healthz"))[0] == 200
        refused = await upgrade(server, "/v1/realtime")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b'"code": "loading"' in refused


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/nothing", "GET", 404),
        ("/../etc/passwd", "GET", 404),
        ("/%2e%2e/secret", "GET", 404),
        ("/", "POST", 405),
        ("/metrics", "DELETE", 405),
        ("/v1/realtime", "GET", 426),
    ],
)
async def test_other_requests_are_refused(path: str, method: str, status: int) -> None:
    async with open_test_server() as server:
        got, _, body = await server.get(path, method=method)
        assert got == status
        assert json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 5_000 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000, 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 505),
        (b"GET http://[/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ],
    ids=["tls", "no host", "long header", "many headers", "long body", "bad length", "bad version", "bad target"],
)
async def test_what_is_no_request_is_refused_and_let_go(raw: bytes, status: int) -> None:
    async with open_test_server() as server:
        assert (await server.ask(raw)).startswith(f"HTTP/1.1 {status} ".encode())
        assert (await server.get("/healthz"))[0] == 200


SECRETS = b"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"Content-Length: 65537\r\n", 413),
        (b"Content-Length: 99999999999999999999\r\n", 413),
        (b"Content-Length: 65537\r\nExpect: 100-continue\r\n", 413),
        (b"Content-Length: 65537\r\nContent-Length: 65537\r\n", 413),
        (b"Content-Length: 9" + b"9" * 3_000 + b"\r\n", 400),
        (b"Content-Length: 10\r\nContent-Length: 11\r\n", 400),
        (b"Content-Length: 10, 11\r\n", 400),
        (b"Content-Length: -1\r\n", 400),
        (b"Content-Length: 1e3\r\n", 400),
        (b"Content-Length:\r\n", 400),
        (b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"Transfer-Encoding: gzip\r\n", 501),
    ],
)
async def test_a_body_of_a_length_that_cannot_be_is_refused_before_it_is_read(lines: bytes, status: int) -> None:
    """Nothing of it is sent here, so who would read it first would wait in vain."""
    async with open_test_server() as server:
        top, _, body = (await server.ask(SECRETS + lines + b"\r\n")).partition(b"\r\n\r\n")
        assert top.startswith(f"HTTP/1.1 {status} ".encode())
        assert json.loads(body)["error"]["code"] == "bad_request"
        assert trio.current_time() < 2


CHUNK = b"8000\r\n" + b" " * 0x8000 + b"\r\n"


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"\r\n", 200),
        (b"Content-Length: 0\r\n\r\n", 200),
        (b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 200),
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 200),
        (b"Transfer-Encoding: chunked\r\n\r\n" + 2 * CHUNK + b"0\r\n\r\n", 200),
        (b"Transfer-Encoding: chunked\r\n\r\n" + 3 * CHUNK, 413),
        (b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + 3 * CHUNK, 413),
        (b"Transfer-Encoding: chunked\r\n\r\nno\r\n", 400),
        (b"Content-Length: 65536\r\n\r\n" + b" " * 65_536, 200),
    ],
)
async def test_a_body_comes_with_its_length_in_chunks_or_not_at_all(rest: bytes, status: int) -> None:
    async with open_test_server() as server:
        got = await server.ask(SECRETS + b"Connection: close\r\n" + rest)
        assert got.startswith(f"HTTP/1.1 {status} ".encode())
        assert json.loads(got.partition(b"\r\n\r\n")[2])


@pytest.mark.realtime
async def test_who_sends_too_much_gets_to_read_why() -> None:
    """Over a real socket: to close it with something unread in it would reset it, and the answer would be lost."""
    async with open_test_server() as server, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        serve = partial(trio.serve_listeners, server.application.handle, listeners)
        nursery.start_soon(serve)
        stream = await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1])
        async with stream:
            await stream.send_all(SECRETS + b"Content-Length: 2000000\r\n\r\n")
            await stream.send_all(b" " * 2_000_000)
            got = b""
            while data := await stream.receive_some(65_536):
                got += bytes(data)
        assert got.startswith(b"HTTP/1.1 413 ")
        nursery.cancel_scope.cancel()


async def test_a_head_that_drips_in_is_cut_off_in_time() -> None:
    async with open_test_server() as server:
        stream = server.dial()
        await stream.send_all(b"GET / HTTP/1.1\r\n")
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                while True:
                    await trio.sleep(1)
                    await stream.send_all(b"X: y\r\n")

            nursery.start_soon(drip)
            answer = await stream.receive_some(65_536)
            nursery.cancel_scope.cancel()
        assert bytes(answer).startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() < 12


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("begins", [b"", b"\x16\x03\x01"], ids=["with nothing", "with the head of a record"])
async def test_a_connection_that_says_nothing_is_let_go(tls: bool, begins: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
    async with open_test_server(ServerSettings(model="scripted", tls=context)) as server:
        stream = server.dial()
        if begins:
            await stream.send_all(begins)
        while await stream.receive_some(65_536):
            pass
        assert trio.current_time() < 12
        await trio.sleep(LINGER_S + 0.1)
        assert server.application.connections == 0


async def test_one_connection_may_ask_several_times() -> None:
    async with open_test_server() as server:
        stream = server.dial()
        for _ in range(3):
            await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert bytes(await stream.receive_some(65_536)).startswith(b"HTTP/1.1 200 ")
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")
        got = b""
        while got.count(b"HTTP/1.1 200") < 2:
            got += bytes(await stream.receive_some(65_536))


async def test_too_many_connections_are_turned_away() -> None:
    settings = ServerSettings(model="scripted", connections_max=1)
    async with open_test_server(settings) as server:
        server.dial()
        await trio.testing.wait_all_tasks_blocked()
        assert (await server.get("/healthz"))[0] == 503


@pytest.mark.parametrize(
    ("path", "lines", "status"),
    [
        ("/v1/nowhere", UPGRADE, 404),
        ("/", UPGRADE, 404),
        ("/v1/realtime", (*UPGRADE[:2], "Sec-WebSocket-Version: 8", UPGRADE[3]), 426),
        ("/v1/realtime", UPGRADE[:3], 400),
        ("/v1/realtime", (*UPGRADE[:3], "Sec-WebSocket-Key: short"), 400),
        ("/v1/realtime?duplex=2", UPGRADE, 400),
    ],
)
async def test_an_upgrade_that_cannot_be_is_refused_in_http(path: str, lines: tuple[str, ...], status: int) -> None:
    async with open_test_server() as server:
        got = await upgrade(server, path, base=lines)
        assert got.startswith(f"HTTP/1.1 {status} ".encode())
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"]


async def test_keys_by_header_and_by_subprotocol() -> None:
    settings = ServerSettings(model="scripted", api_keys=("sk-one", "sk-two"))
    async with open_test_server(settings) as server:
        assert (await upgrade(server, "/v1/realtime")).startswith(b"HTTP/1.1 401 ")
        for wrong in ("Authorization: Bearer sk-three", "Authorization: Basic sk-one", "Authorization: Bearer "):
            assert (await upgrade(server, "/v1/realtime", wrong)).startswith(b"HTTP/1.1 401 ")
        for right in ("Authorization: Bearer sk-two", "Authorization: bearer sk-two"):
            assert (await upgrade(server, "/v1/realtime", right)).startswith(b"HTTP/1.1 101 ")
        proposed = "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.sk-one"
        by_subprotocol = await upgrade(server, "/v1/realtime", proposed)
        assert by_subprotocol.startswith(b"HTTP/1.1 101 ")
        assert b"sec-websocket-protocol: realtime\r\n" in by_subprotocol.lower()
        assert (await server.get("/v1/models"))[0] == 401
        assert (await server.get("/v1/models", "Authorization: Bearer sk-one"))[0] == 200
        assert (await server.get("/"))[0] == (await server.get("/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("listens_on", "host", "origin", "allowed"),
    [
        ("127.0.0.1", "localhost:8765", None, True),
        ("127.0.0.1", "127.0.0.1:8765", "http://127.0.0.1:8765", True),
        ("127.0.0.1", "[::1]:8765", "http://localhost:3000", True),
        ("127.0.0.1", "LOCALHOST", "http://[::1]:8765", True),
        ("127.0.0.1", "localhost", "https://friend.test", True),
        ("127.0.0.1", "friend.test", "https://friend.test", True),
        ("127.0.0.1", "friend.test", None, True),
        ("127.0.0.1", "localhost", "https://evil.test", False),
        ("127.0.0.1", "localhost", "https://localhost.evil.test", False),
        ("127.0.0.1", "localhost", "https://localhost@evil.test", False),
        ("127.0.0.1", "localhost", "http://[::1", False),
        ("127.0.0.1", "localhost", "null", False),
        ("127.0.0.1", "evil.test:8765", "http://evil.test:8765", False),
        ("127.0.0.1", "evil.test:8765", "http://localhost:8765", False),
        ("127.0.0.1", "evil.test:8765", None, False),
        ("127.0.0.1", "127.0.0.1.evil.test", None, False),
        ("0.0.0.0", "server.test", "https://evil.test", False),
        ("0.0.0.0", "server.test", "null", False),
        ("0.0.0.0", "server.test", "http://server.test", True),
        ("0.0.0.0", "server.test", "http://server.test:81", False),
        ("0.0.0.0", "server.test", "http://localhost", False),
        ("0.0.0.0", "server.test", "https://friend.test", True),
        ("0.0.0.0", "server.test", None, True),
    ],
)
async def test_origins(listens_on: str, host: str, origin: str | None, allowed: bool) -> None:
    """Also of names that somebody else lets resolve to this machine (DNS rebinding)."""
    settings = ServerSettings(model="scripted", host=listens_on, origins=("https://friend.test",))
    async with open_test_server(settings) as server:
        got = await upgrade(server, "/v1/realtime", *([f"Origin: {origin}"] if origin else []), host=host)
        assert got.startswith(b"HTTP/1.1 101 " if allowed else b"HTTP/1.1 403 ")


def test_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.test", "")))
