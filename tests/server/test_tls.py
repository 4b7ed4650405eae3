"""A server with a certificate: HTTPS and wss, and nothing without. The certificate and its key are made for the test."""

from __future__ import annotations

import ssl
import subprocess
import urllib.error
import urllib.request

import pytest
import trio
from click.testing import CliRunner

from adapters.client.session_config import cascade_session_config
from adapters.client.trio_client import DuplexClient
from adapters.command_line.talk import talk
from tests.server.test_serve_command import serving

pytestmark = [pytest.mark.realtime, pytest.mark.needs("openssl")]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Paths of a certificate for localhost that signs itself, and of its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-out", cert, "-keyout", key], check=True, capture_output=True, timeout=50)
    return cert, key


def test_it_speaks_tls_to_browsers_and_to_clients_and_only_that(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate
    monkeypatch.setenv("SSL_CERT_FILE", cert)  # whom the client trusts

    async def say_hello(port: int) -> str:
        url = f"wss://localhost:{port}/v1/realtime"
        async with DuplexClient(url, model="scripted", config=cascade_session_config()) as client:
            await client.send_text("hello")
            async for response in client.responses():
                return str((await response.wait_done()).status)
        return "no answer"

    arguments = ("--model", "scripted", "--store", "memory:", "--tls-cert", cert, "--tls-key", key)
    with serving(*arguments) as (_, port):
        with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10)
        trusting = ssl.create_default_context(cafile=cert)
        with urllib.request.urlopen(f"https://localhost:{port}/readyz", timeout=10, context=trusting) as answer:
            assert answer.status == 200
        assert trio.run(say_hello, port) == "completed"
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"https://localhost:{port}/readyz", timeout=10)


def test_a_client_without_trust_and_one_without_tls_are_told_what_to_do(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    arguments = ("--model", "scripted", "--store", "memory:", "--tls-cert", cert, "--tls-key", key)
    with serving(*arguments) as (_, port):
        told = CliRunner().invoke(talk, ["--say", "hi", "--url", f"wss://localhost:{port}/v1/realtime"])
        assert told.exit_code == 1
        assert "its certificate is not trusted (self-signed certificate)" in told.output
        assert "SSL_CERT_FILE" in told.output
        told = CliRunner().invoke(talk, ["--say", "hi", "--url", f"ws://localhost:{port}/v1/realtime"])
        assert told.exit_code == 1
        assert "wss://" in told.output
