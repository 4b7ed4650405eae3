"""Ephemeral keys for browsers: ``POST /v1/realtime/client_secrets``, in the shape of OpenAI's.

A secret is a signed text, not a row in a table: any server with the same API keys can check it, a restart forgets none, and
there is nothing to bound or to sweep. It says until when it is good, whose key's limits it counts on, and how its sessions
begin. It cannot be called back, so it does not last long.

A browser's user may read one, so nothing in it may help to guess an API key: what signs it, and what names its owner in it,
comes from the keys by scrypt. Who has a secret and tries keys pays for one scrypt a guess.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Mapping
from hashlib import scrypt, sha256
from typing import Any

import attrs
import pybase64

from adapters.server.http import BODY_BYTES_MAX
from adapters.wire import fields
from adapters.wire.problems import Problem

PREFIX = "ek_"
LIFE_S_MIN, LIFE_S_MAX, LIFE_S = 10, 7_200, 600
SECRET_CHARS_MAX = 8 * 1024
"""It must fit into a request's head, beside the rest of it."""

SCRYPT_COST, SCRYPT_BLOCKS, SCRYPT_LANES = 2**14, 8, 1
"""16 MiB and about 50 ms, once at the start."""


@attrs.frozen
class Secret:
    """What a good secret says. ``key``: its owner, as ``ClientSecrets.owner`` names it."""

    key: str
    expires_at: int
    session: Mapping[str, Any] = attrs.field(repr=False)


class ClientSecrets:
    """Makes and checks them. ``api_keys`` sign; without any, a key of this process does."""

    def __init__(self, api_keys: tuple[str, ...]) -> None:
        root = _stretched(api_keys) if api_keys else secrets.token_bytes(32)
        self._key = hmac.digest(root, b"sign", "sha256")
        self._naming_key = hmac.digest(root, b"name", "sha256")

    def owner(self, api_key: str) -> str:
        """A name for a key, the same at every server of the same keys. It tells nothing of it."""
        return hmac.digest(self._naming_key, api_key.encode(), "sha256").hex()[:16]

    def make(self, owner: str, session: Mapping[str, Any], life_s: int, now_s: int) -> tuple[str, int]:
        """(the secret, when it expires in unix seconds). Raises Problem when its session is too large for a header."""
        expires_at = now_s + life_s
        said = {"k": owner, "x": expires_at, "s": session, "n": secrets.token_hex(8)}
        body = _text(json.dumps(said, separators=(",", ":")).encode())
        if len(body) > SECRET_CHARS_MAX:
            raise Problem("invalid_value", "'session' is too large for a client secret.", "session")
        return f"{PREFIX}{body}.{self._mac(body)}", expires_at

    def read(self, secret: str, now_s: float) -> Secret | None:
        """What it says; None when it is not one of ours, was changed, or is over."""
        body, _, mac = secret.removeprefix(PREFIX).rpartition(".")
        if not secret.startswith(PREFIX) or len(secret) > SECRET_CHARS_MAX + 64:
            return None
        if not hmac.compare_digest(mac.encode(), self._mac(body).encode()):
            return None
        said = json.loads(pybase64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return Secret(said["k"], said["x"], said["s"]) if now_s < said["x"] else None

    def _mac(self, body: str) -> str:
        return _text(hmac.digest(self._key, body.encode(), sha256))


def _stretched(api_keys: tuple[str, ...]) -> bytes:
    """32 bytes from all keys, whatever their order. The salt is fixed: servers that share nothing else must agree."""
    material = b"".join(len(key.encode()).to_bytes(4, "big") + key.encode() for key in sorted(api_keys))
    return scrypt(material, salt=b"duologue client secret", n=SCRYPT_COST, r=SCRYPT_BLOCKS, p=SCRYPT_LANES, dklen=32)


def _text(data: bytes) -> str:
    """URL-safe base64 without padding: it must be a token of HTTP, for the subprotocol in which browsers send it."""
    return pybase64.urlsafe_b64encode(data).decode().rstrip("=")


def read_request(body: bytes) -> tuple[Mapping[str, Any], int]:
    """The body of a request for one -> (session settings, seconds of life). Raises Problem."""
    if not body.strip():
        return {}, LIFE_S
    asked = fields.parse_json(body[:BODY_BYTES_MAX])
    session, after = (
        {} if asked.get(name) is None else fields.table(asked[name], name) for name in ("session", "expires_after")
    )
    if after.get("anchor", "created_at") != "created_at":
        raise Problem("invalid_value", "'expires_after.anchor' is 'created_at'.", "expires_after.anchor")
    life_s = fields.whole(after.get("seconds", LIFE_S), "expires_after.seconds", LIFE_S_MIN, LIFE_S_MAX)
    return session, life_s
