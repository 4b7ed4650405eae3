"""Who may come in: API keys, ephemeral secrets, and origins."""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from adapters.server.client_secrets import ClientSecrets
from adapters.server.http import Request
from adapters.server.settings import ServerSettings, is_loopback

KEY_SUBPROTOCOL = "openai-insecure-api-key."
SUBPROTOCOL = "realtime"


@attrs.frozen
class Identity:
    """Whose limits count (a name for the key that does not tell it; "" where none is needed), and how its sessions
    begin."""

    key: str = ""
    session: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    ephemeral: bool = False


def subprotocols(request: Request) -> list[str]:
    """What the client proposes, in its order."""
    return [part.strip() for part in request.header("sec-websocket-protocol").split(",") if part.strip()]


def identify(request: Request, settings: ServerSettings, client_secrets: ClientSecrets) -> Identity | None:
    """Who asks, by a key or a client secret: as a Bearer header, or as the subprotocol with which browsers send one. None:
    nobody whom this server lets in. Every key is compared, in constant time each."""
    given = []
    scheme, _, token = request.header("authorization").partition(" ")
    if scheme.lower() == "bearer":
        given.append(token.strip())
    given += [name.removeprefix(KEY_SUBPROTOCOL) for name in subprotocols(request) if name.startswith(KEY_SUBPROTOCOL)]
    found = None
    for key in settings.api_keys:
        for one in given:
            if hmac.compare_digest(key.encode(), one.encode()):
                found = Identity(client_secrets.owner(key))
    for one in given:
        secret = client_secrets.read(one, time.time())
        if secret is not None and found is None:
            found = Identity(secret.key, secret.session, ephemeral=True)
    return found if found is not None or settings.api_keys else Identity()


def origin_allowed(request: Request, settings: ServerSettings) -> bool:
    """Whether a page of that origin may connect: the server's own and the listed ones. Programs send no origin and are not
    browsers that could be misled.

    On a loopback server every page of this machine may, and the request must be addressed to this machine or to a listed
    site (whose proxy passes it on): a name of somebody else's that resolves to 127.0.0.1 makes no page the server's own.
    """
    origin, host = request.header("origin"), request.header("host").lower()
    listed = {_netloc(one) for one in settings.origins}
    local = is_loopback(settings.host)
    if local and host and not is_loopback(_name(host)) and host not in listed:
        return False
    if not origin or origin in settings.origins:
        return True
    netloc = _netloc(origin)
    return bool(netloc) and (netloc == host or (local and is_loopback(_name(netloc))))


def _netloc(origin: str) -> str:
    """The host and port of an origin; "" for what is none (``null``)."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name(host: str) -> str:
    """The host of ``host:port`` or ``[address]:port``; "" for what is neither."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
