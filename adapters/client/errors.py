"""What can go wrong for a client, by what the caller can do about it.

``DuplexProtocolError`` and below: the server refused or broke the protocol, and says why with a stable code.
``SessionEnded`` and below: this client's session is over; a reconnect would not help.
``ConnectionLost``: the network or the server is gone, and the reconnect policy is used up.
``SendBufferFull``, ``ClientMisuse``: the caller's own doing.
"""

from __future__ import annotations


class ClientError(Exception):
    """Root of everything that the client raises on purpose."""


class DuplexProtocolError(ClientError):
    """The server answered with an ``error`` event, or broke a promise of the protocol."""

    def __init__(self, code: str, message: str, *, param: str | None = None, event_id: str | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.param = param
        self.event_id = event_id
        """The client event that was refused, where the server names it."""


class HandshakeRefused(DuplexProtocolError):
    """The server would not open or resume the session. ``status``: of the HTTP answer, when it came to no upgrade;
    ``retry_after_ms``: the pause that it asked for."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        status: int | None = None,
        param: str | None = None,
        event_id: str | None = None,
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(code, message, param=param, event_id=event_id)
        self.retryable = retryable
        self.status = status
        self.retry_after_ms = retry_after_ms


class StreamGap(DuplexProtocolError):
    """Numbers that never came and that nobody declared skipped: the stream is not whole. ``ranges`` is closed."""

    def __init__(self, ranges: tuple[tuple[int, int], ...]) -> None:
        super().__init__("stream_gap", f"events {list(ranges)} were lost without being announced as skipped")
        self.ranges = ranges


class SessionEnded(ClientError):
    """The session is over, as the server said or as this client asked."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(message or f"the session has ended: {reason}")
        self.reason = reason


class SessionReplaced(SessionEnded):
    """Another client resumed the session and holds the stream now."""

    def __init__(self, generation: int) -> None:
        super().__init__("replaced", f"another client took the session over from attachment {generation}")
        self.generation = generation


class SessionExpired(SessionEnded):
    """The server ended the session because of a deadline."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, f"the session has expired: {reason}")


class ResyncRequired(SessionEnded):
    """The server can no longer replay from this client's number: open a fresh session, or attach at the head."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, f"the stream cannot be continued from here: {reason}")


class ConnectionLost(ClientError):
    """The connection failed and was not, or could not be, resumed. ``attempts`` counts reconnects that failed; ``answered``:
    somebody is there, but it is no such server, or not spoken to as it wants."""

    def __init__(self, reason: str, attempts: int = 0, *, answered: bool = False) -> None:
        tried = f" after {attempts} attempts to reconnect" if attempts else ""
        super().__init__(f"connection lost{tried}: {reason}")
        self.reason = reason
        self.attempts = attempts
        self.answered = answered


class SendBufferFull(ClientError):
    """What waits to be sent has reached its bound; the event was not queued."""

    def __init__(self, items: int, size_bytes: int) -> None:
        super().__init__(f"the send buffer is full ({items} events, {size_bytes} bytes)")
        self.items = items
        self.size_bytes = size_bytes


class ClientMisuse(ClientError):
    """The client was called in a way that cannot work: before it was entered, say."""
