"""A WebSocket for the trio client, on wsproto (the protocol part of trio-websocket).

trio-websocket's own client reads in a task of the caller's nursery and raises there when the server refuses the upgrade,
which would take the whole client down; and it leaves the socket open when that task is cancelled before the peer's end of
file. Here whoever waits for a frame reads it, so there is no task to lose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from urllib.parse import urlsplit

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from adapters.client.mismatch import ABNORMAL, HUNG_UP, NO_WEBSOCKET, TransportMismatch, tls_failure
from adapters.client.transport import (
    CLOSE_WAIT_S,
    MESSAGE_BYTES_MAX,
    Transport,
    TransportClosed,
    TransportRefused,
)

READ_BYTES = 65_536
REFUSAL_BYTES_MAX = 64 * 1024
MESSAGE_TOO_BIG = 1_009


class TrioTransport:
    """One open WebSocket. One reader; any number of writers."""

    def __init__(self, stream: trio.abc.Stream, protocol: WSConnection) -> None:
        self._stream = stream
        self._protocol = protocol
        self._writing = trio.StrictFIFOLock()
        self._messages: deque[str] = deque()
        self._parts: list[str] = []
        self._size = 0
        self._closed: TransportClosed | None = None
        self._answered = False
        self._accepted = False
        self._refused_status = 0
        self._refused_body = b""
        self._retry_after = ""

    async def send(self, text: str) -> None:
        """Write one frame. Raises TransportClosed."""
        await self._write(TextMessage(data=text))

    async def receive(self) -> str:
        """The next frame. Raises TransportClosed."""
        while not self._messages:
            if self._closed is not None:
                raise self._closed
            await self._read_some()
        return self._messages.popleft()

    async def open(self, host: str, target: str, headers: Mapping[str, str]) -> None:
        """Ask for the upgrade. Raises TransportRefused, TransportClosed."""
        extra = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
        await self._write(Request(host=host, target=target, extra_headers=extra))
        while not self._accepted:
            if self._closed is not None:
                raise self._closed
            await self._read_some()

    async def close(self, code: int, reason: str) -> None:
        """Say goodbye and wait a second for the answer; then the socket is closed in any case, cancelled or not."""
        with trio.move_on_after(CLOSE_WAIT_S, shield=True):
            try:
                if self._closed is None and self._protocol.state is ConnectionState.OPEN:
                    await self._write(CloseConnection(code=code, reason=reason))
                while self._closed is None:
                    self._messages.clear()
                    await self._read_some()
            except (TransportClosed, TransportRefused, trio.BusyResourceError):
                pass
        self._closed = self._closed or TransportClosed(None, "closed by this client")
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)

    async def _write(self, event: Event) -> None:
        async with self._writing:
            try:
                await self._stream.send_all(self._protocol.send(event))
            except LocalProtocolError:
                raise self._closed or TransportClosed(None, "the connection is closing") from None
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise self._closed or TransportClosed(ABNORMAL, "the connection broke") from None

    async def _read_some(self) -> None:
        try:
            data: bytes | None = bytes(await self._stream.receive_some(READ_BYTES)) or None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            data = None
        self._answered = self._answered or data is not None
        try:
            self._protocol.receive_data(data)
            for event in self._protocol.events():
                await self._handle(event)
        except RemoteProtocolError as error:
            if not self._accepted:
                raise TransportMismatch(NO_WEBSOCKET if self._answered else HUNG_UP) from error
            self._closed = TransportClosed(None, f"the server broke the WebSocket protocol: {error}")
        if data is None and self._closed is None:
            self._closed = TransportClosed(ABNORMAL, "the connection broke")

    async def _handle(self, event: Event) -> None:
        match event:
            case AcceptConnection():
                self._accepted = True
            case TextMessage():
                self._take(event.data, event.message_finished)
            case BytesMessage():
                self._take(bytes(event.data).decode("utf-8", "replace"), event.message_finished)
            case Ping():
                await self._write(event.response())
            case CloseConnection():
                self._closed = TransportClosed(int(event.code), event.reason or "")
                if self._protocol.state is ConnectionState.REMOTE_CLOSING:
                    await self._write(event.response())
            case RejectConnection():
                self._refused_status = event.status_code
                self._retry_after = dict(event.headers).get(b"retry-after", b"").decode("latin-1")
                if not event.has_body:
                    raise TransportRefused(event.status_code, b"", self._retry_after)
            case RejectData():
                self._refused_body += bytes(event.data)
                if event.body_finished or len(self._refused_body) > REFUSAL_BYTES_MAX:
                    raise TransportRefused(self._refused_status, self._refused_body, self._retry_after)

    def _take(self, part: str, finished: bool) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > MESSAGE_BYTES_MAX:
            self._closed = TransportClosed(MESSAGE_TOO_BIG, f"a frame of more than {MESSAGE_BYTES_MAX} bytes came")
        elif finished:
            self._messages.append("".join(self._parts))
            self._parts, self._size = [], 0


async def _greet_tls(stream: trio.SSLStream[trio.SocketStream]) -> None:
    """The TLS handshake. Raises TransportMismatch, TransportClosed."""
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as error:
        raise tls_failure(error.__cause__) from None


async def connect(url: str, headers: Mapping[str, str]) -> Transport:
    """Open a WebSocket; a ConnectFn. Raises OSError, TransportClosed (TransportMismatch), TransportRefused."""
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "wss"
    port = parts.port or (443 if secure else 80)
    stream: trio.abc.Stream
    if secure:
        stream = await trio.open_ssl_over_tcp_stream(host, port, https_compatible=True)
    else:
        stream = await trio.open_tcp_stream(host, port)
    transport = TrioTransport(stream, WSConnection(ConnectionType.CLIENT))
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        if isinstance(stream, trio.SSLStream):
            await _greet_tls(stream)
        await transport.open(parts.netloc.rpartition("@")[2], target, headers)
    except BaseException:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)
        raise
    return transport
