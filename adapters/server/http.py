"""The front: reads one request's head, and knows nothing of what is behind it.

h11 parses; this shell reads and writes. The raw bytes of the head are kept, so that a request to upgrade
can be handed to the WebSocket library as it came.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs
import h11
import trio

from adapters.server.upgraded import UpgradedStream

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 64 * 1024
READ_BYTES = 64 * 1024
LINGER_S = 1.0
LINGER_BYTES_MAX = 4 * 1024 * 1024


@attrs.frozen
class Request:
    """A request as far as this server reads them. Header names are lower case; of a repeated one, values are joined."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""

    def header(self, name: str) -> str:
        """A header's value, "" when it is not there."""
        return self.headers.get(name, "")

    @property
    def upgrades(self) -> bool:
        """Whether it asks for a WebSocket."""
        tokens = [token.strip().lower() for token in self.header("connection").split(",")]
        return "upgrade" in tokens and self.header("upgrade").lower() == "websocket"


@attrs.frozen
class Response:
    """An answer with a whole body."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class BadRequest(Exception):
    """The peer does not speak HTTP, or too much of it. ``status`` is the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def too_large() -> BadRequest:
    """For who sends more of a body than is read here."""
    return BadRequest(413, f"a body may have {BODY_BYTES_MAX} bytes")


def json_response(status: int, payload: object, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """A JSON answer."""
    return Response(status, json.dumps(payload).encode() + b"\n", "application/json", headers)


def error_response(
    status: int, code: str, message: str, headers: tuple[tuple[str, str], ...] = (), **extra: Any
) -> Response:
    """An error in the shape that OpenAI's clients read from HTTP."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return json_response(status, {"error": {"type": kind, "code": code, "message": message, **extra}}, headers)


class HttpConnection:
    """One TCP connection, request after request."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._raw = b""

    async def receive(self, limit: AbstractContextManager[trio.CancelScope]) -> Request | None:
        """The next request, whole; None when the peer is done. Raises BadRequest; ``limit`` is for all of it, and a peer
        that sent nothing of one is done."""
        with limit as scope:
            return await self._receive()
        assert scope.cancelled_caught
        if self._raw:
            raise BadRequest(408, "the request took too long")
        return None

    async def _receive(self) -> Request | None:
        head: h11.Request | None = None
        body = b""
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Request):
                head = event
                self._check(head)
                request = _request(head)
                if request.upgrades:
                    return request
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
                if len(body) > BODY_BYTES_MAX:
                    raise too_large()
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return attrs.evolve(request, body=body)
            elif isinstance(event, h11.ConnectionClosed):
                return None

    def _check(self, head: h11.Request) -> None:
        """h11 bounds a head that is incomplete; one that came in a single read is bounded here."""
        if len(self._raw) - len(self._h11.trailing_data[0]) > HEAD_BYTES_MAX:
            raise BadRequest(431, f"a request's head may have {HEAD_BYTES_MAX} bytes")
        if head.http_version not in (b"1.0", b"1.1"):
            raise BadRequest(505, "HTTP/1.1 is spoken here")
        _check_length(dict(head.headers))  # of a length that is told twice h11 makes one, or an error

    async def _next_event(self) -> Any:
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise BadRequest(error.error_status_hint or 400, str(error)) from None
            if event is h11.PAUSED:
                raise BadRequest(400, "a request came before the last one was answered")
            if event is not h11.NEED_DATA:
                return event
            if self._h11.they_are_waiting_for_100_continue:
                await self._write(self._h11.send(h11.InformationalResponse(status_code=100, headers=[])))
            try:
                data = bytes(await self._stream.receive_some(READ_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            self._raw += data
            self._h11.receive_data(data)

    async def respond(self, response: Response, *, head_only: bool = False, last: bool = False) -> bool:
        """Answer; whether another request may follow."""
        headers = [
            ("content-type", response.content_type),
            ("content-length", str(len(response.body))),
            ("x-content-type-options", "nosniff"),
            *response.headers,
        ]
        if last:
            headers.append(("connection", "close"))
        reason = HTTPStatus(response.status).phrase
        out = self._h11.send(h11.Response(status_code=response.status, headers=headers, reason=reason.encode()))
        assert out is not None
        if not head_only and response.status != 304:
            out += self._h11.send(h11.Data(data=response.body)) or b""
        await self._write(out + (self._h11.send(h11.EndOfMessage()) or b""))
        if last or self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._raw = bytes(self._h11.trailing_data[0])
        self._h11.start_next_cycle()
        return True

    async def refuse(self, bad: BadRequest) -> None:
        """Answer what is no request, and be done. A peer that still sends is given a moment to see the answer: to close at
        once would make the kernel throw it away together with what was not read."""
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        await self.respond(error_response(bad.status, "bad_request", bad.reason), last=True)
        if bad.status == HTTPStatus.REQUEST_TIMEOUT:
            return
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        with trio.move_on_after(LINGER_S):
            left = LINGER_BYTES_MAX
            while left > 0 and (data := await self._stream.receive_some(READ_BYTES)):
                left -= len(data)

    async def _write(self, data: bytes | None) -> None:
        if data:
            await self._stream.send_all(data)

    def upgraded(self) -> UpgradedStream:
        """The stream, as it was before the present request was read."""
        behind = bytes(self._h11.trailing_data[0])
        return UpgradedStream(self._stream, self._raw[: len(self._raw) - len(behind)], behind)


def _check_length(headers: Mapping[bytes, bytes]) -> None:
    """Before a byte of the body is read, or asked for. Raises BadRequest."""
    length = headers.get(b"content-length")
    if length is not None and b"transfer-encoding" in headers:
        raise BadRequest(400, "a body has a length or comes in chunks, not both")
    if length is not None and int(length) > BODY_BYTES_MAX:
        raise too_large()


def _request(head: h11.Request) -> Request:
    try:
        target = urlsplit(head.target.decode("ascii", "replace"))
    except ValueError:
        raise BadRequest(400, "the request's target is no URL") from None
    headers: dict[str, str] = {}
    for name, value in head.headers:
        key, text = name.decode("ascii"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    query = dict(parse_qsl(target.query, keep_blank_values=True))
    return Request(head.method.decode("ascii"), unquote(target.path) or "/", query, headers)
