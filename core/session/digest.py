"""Digests. A body's name is the digest of its bytes; a session's chain is a digest over all it has caused."""

from __future__ import annotations

from hashlib import blake2b

CHAIN_START = b"\0" * 16


def body_digest(data: bytes) -> str:
    """The name of a body: blake2b-128 of its bytes, in hex."""
    return blake2b(data, digest_size=16).hexdigest()


def chain_digest(previous: bytes, caused: bytes) -> bytes:
    """The next link: a digest of the last link and of what the batch caused, encoded."""
    return blake2b(caused, digest_size=16, key=previous).digest()
