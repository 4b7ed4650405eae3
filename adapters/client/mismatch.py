"""Why there is no connection, in words that say what to do: nobody answers there, or somebody who speaks something else."""

from __future__ import annotations

import ssl

from adapters.client.errors import ConnectionLost
from adapters.client.transport import TransportClosed

ABNORMAL = 1_006

NO_WEBSOCKET = "what answers there speaks no WebSocket; if it wants TLS, the address begins with wss://"
HUNG_UP = "it hung up without a word; if it wants TLS, the address begins with wss://"


class TransportMismatch(TransportClosed):
    """Somebody answers, and speaks something else: no WebSocket, no TLS, or TLS with a certificate that is not trusted."""

    def __init__(self, reason: str) -> None:
        super().__init__(None, reason)


def tls_failure(error: BaseException | None) -> TransportClosed:
    """Why there is no TLS, from what the ssl module raised; without such an error the connection broke."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return TransportMismatch(
            f"its certificate is not trusted ({why}); if it is yours, name its file in SSL_CERT_FILE"
        )
    if isinstance(error, ssl.SSLError):
        return TransportMismatch("what answers there speaks no TLS; without it the address begins with ws://")
    return TransportClosed(ABNORMAL, "the connection broke")


def connection_lost(error: Exception) -> ConnectionLost:
    """For who uses the client, from what a ConnectFn raised."""
    return ConnectionLost(str(error) or type(error).__name__, answered=isinstance(error, TransportMismatch))
