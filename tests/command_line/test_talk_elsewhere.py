"""`duologue talk` to an address where no duologue answers: what is there is said, and what to do; never a traceback."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from adapters.command_line.talk import talk


class Pages(http.server.SimpleHTTPRequestHandler):
    """A web server that knows no upgrade."""

    def do_GET(self) -> None:
        self.send_response(404 if self.path.startswith("/v1/") else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Nothing."""


@contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port where each connection is given to ``answer`` and then closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def web(connection: socket.socket) -> None:
    Pages(connection, ("127.0.0.1", 0), None)  # type: ignore[arg-type]


def mail(connection: socket.socket) -> None:
    connection.recv(1_000)
    connection.sendall(b"220 mail.example ESMTP\r\n")


def say_hello(url: str) -> tuple[int, str]:
    result = CliRunner().invoke(talk, ["--say", "hello", "--url", url])
    assert result.exception is None or isinstance(result.exception, SystemExit), "no traceback"
    return result.exit_code, result.output


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("answer", "address", "says"),
    [
        (web, "ws://127.0.0.1:{}/v1/realtime", "HTTP 404. Is it a duologue server, and is the path right?"),
        (web, "ws://127.0.0.1:{}/", "HTTP 200. Is it a duologue server, and is the path right?"),
        (web, "wss://127.0.0.1:{}/v1/realtime", "speaks no TLS; without it the address begins with ws://"),
        (mail, "ws://127.0.0.1:{}/v1/realtime", "speaks no WebSocket; if it wants TLS, the address begins with wss://"),
        (lambda it: it.recv(1), "ws://127.0.0.1:{}/v1/realtime", "Is it a duologue server? Its address goes to --url"),
    ],
    ids=["web", "page", "no tls", "mail", "hangs up"],
)
def test_somebody_else_is_there(answer: Callable[[socket.socket], object], address: str, says: str) -> None:
    with listening(answer) as port:
        code, text = say_hello(address.format(port))
    assert code == 1
    assert says in text


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8765",
        "http://localhost:8765/",
        "ws://localhost:99999/",
        "ws://localhost:abc/",
        "ws://[::1/v1",
        "ws://",
        "",
    ],
)
def test_what_is_no_address_is_said_before_anything_is_tried(url: str) -> None:
    code, text = say_hello(url)
    assert code == 2
    assert "it must look like ws://host:8765/v1/realtime" in text
