"""Who may come in: API keys and origins."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from adapters.server.http import Request
from adapters.server.settings import ServerSettings, is_loopback

KEY_SUBPROTOCOL = "openai-insecure-api-key."
SUBPROTOCOL = "realtime"


def subprotocols(request: Request) -> list[str]:
    """What the client proposes, in its order."""
    return [part.strip() for part in request.header("sec-websocket-protocol").split(",") if part.strip()]


def has_key(request: Request, settings: ServerSettings) -> bool:
    """Whether the request carries a valid key (or none is needed): as a Bearer header, or as the subprotocol with which
    browsers send one. Every key is compared, in constant time each."""
    if not settings.api_keys:
        return True
    given = []
    scheme, _, token = request.header("authorization").partition(" ")
    if scheme.lower() == "bearer":
        given.append(token.strip())
    given += [name.removeprefix(KEY_SUBPROTOCOL) for name in subprotocols(request) if name.startswith(KEY_SUBPROTOCOL)]
    good = False
    for key in settings.api_keys:
        for one in given:
            good |= hmac.compare_digest(key.encode(), one.encode())
    return good


def origin_allowed(request: Request, settings: ServerSettings) -> bool:
    """Whether a page of that origin may connect: any on a loopback server, else the server's own and the listed ones.
    Programs send no origin and are not browsers that could be misled."""
    origin = request.header("origin")
    if not origin or is_loopback(settings.host) or origin in settings.origins:
        return True
    return bool(urlsplit(origin).netloc) and urlsplit(origin).netloc == request.header("host")
