"""The project's own client of a duplex session.

``core`` is the client without sockets; ``trio_client`` and ``asyncio_client`` put it on an event loop; ``player`` models
a listener. This package depends on the standard library and on ``adapters.wire.schema`` alone; each shell adds its one
WebSocket library, and is imported from its own module so that the other library need not be there.
"""

from adapters.client.credentials import ReconnectPolicy, ResumeCredentials
from adapters.client.errors import (
    ClientError,
    ClientMisuse,
    ConnectionLost,
    DuplexProtocolError,
    HandshakeRefused,
    ResyncRequired,
    SendBufferFull,
    SessionEnded,
    SessionExpired,
    SessionReplaced,
    StreamGap,
)
from adapters.client.frames import DuplexEvent
from adapters.client.handle import ResponseHandle

__all__ = [
    "ClientError",
    "ClientMisuse",
    "ConnectionLost",
    "DuplexEvent",
    "DuplexProtocolError",
    "HandshakeRefused",
    "ReconnectPolicy",
    "ResponseHandle",
    "ResumeCredentials",
    "ResyncRequired",
    "SendBufferFull",
    "SessionEnded",
    "SessionExpired",
    "SessionReplaced",
    "StreamGap",
]
