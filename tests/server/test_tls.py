"""A server with a certificate: HTTPS and wss, and nothing without. The certificate is the tests' own (tests/data/tls)."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trio

from adapters.client.session_config import cascade_session_config
from adapters.client.trio_client import DuplexClient
from tests.server.test_serve_command import serving

FOLDER = Path(__file__).resolve().parents[1] / "data" / "tls"
CERT, KEY = str(FOLDER / "cert.pem"), str(FOLDER / "key.pem")


@pytest.mark.realtime
def test_it_speaks_tls_to_browsers_and_to_clients_and_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", CERT)  # whom the client trusts

    async def talk(port: int) -> str:
        url = f"wss://localhost:{port}/v1/realtime"
        async with DuplexClient(url, model="scripted", config=cascade_session_config()) as client:
            await client.send_text("hello")
            async for response in client.responses():
                return str((await response.wait_done()).status)
        return "no answer"

    arguments = ("--model", "scripted", "--store", "memory:", "--tls-cert", CERT, "--tls-key", KEY)
    with serving(*arguments) as (_, port):
        with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10)
        trusting = ssl.create_default_context(cafile=CERT)
        with urllib.request.urlopen(f"https://localhost:{port}/readyz", timeout=10, context=trusting) as answer:
            assert answer.status == 200
        assert trio.run(talk, port) == "completed"
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"https://localhost:{port}/readyz", timeout=10)
