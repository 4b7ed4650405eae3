"""The page where one talks to the assistant, as static files that a server hands out.

``asset_for_path("/")`` is all that a server needs. Only the names in ``ASSETS`` can be loaded: a path is looked up, never
joined, so nothing else of the package (or of the disk) is reachable. Each asset carries a strong ETag of its bytes.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from types import MappingProxyType

import attrs

_SCRIPT = "text/javascript; charset=utf-8"

ASSETS: MappingProxyType[str, str] = MappingProxyType(
    {
        "index.html": "text/html; charset=utf-8",
        "style.css": "text/css; charset=utf-8",
        "icon.svg": "image/svg+xml",
        "app.js": _SCRIPT,
        "capture-worklet.js": _SCRIPT,
        "conversation.js": _SCRIPT,
        "heard.js": _SCRIPT,
        "lanes.js": _SCRIPT,
        "latency.js": _SCRIPT,
        "link.js": _SCRIPT,
        "microphone.js": _SCRIPT,
        "notices.js": _SCRIPT,
        "playback-worklet.js": _SCRIPT,
        "player.js": _SCRIPT,
        "protocol.js": _SCRIPT,
        "sequence.js": _SCRIPT,
        "unconfirmed.js": _SCRIPT,
        "view.js": _SCRIPT,
    }
)
"""Name -> content type of everything that may be served."""

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self' ws: wss:; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page needs and no more. ``ws: wss:`` because older Safari does not count a socket as ``'self'``."""

SECURITY_HEADERS: MappingProxyType[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
)
"""Headers to send with every asset."""


@attrs.frozen
class Asset:
    """One file of the page: its content type, its bytes, and a quoted strong ETag."""

    name: str
    content_type: str
    body: bytes
    etag: str


class UnknownAsset(LookupError):
    """The name is not part of the page."""


@functools.cache
def load(name: str) -> Asset:
    """Return the asset called ``name``. Raises UnknownAsset for anything that is not in ``ASSETS``."""
    content_type = ASSETS.get(name)
    if content_type is None:
        raise UnknownAsset(name)
    body = resources.files(__name__).joinpath(name).read_bytes()
    etag = '"' + hashlib.sha256(body).hexdigest()[:32] + '"'
    return Asset(name=name, content_type=content_type, body=body, etag=etag)


def asset_for_path(path: str) -> Asset | None:
    """Return the asset for a URL path (without query), ``/`` being index.html; None if the page has no such file."""
    name = "index.html" if path == "/" else path.removeprefix("/")
    return load(name) if name in ASSETS else None
