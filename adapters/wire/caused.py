"""What a step caused, as bytes for the session's chained digest: the same on every server and in every replay. A change
here is a change of every chain: it would need new projection versions."""

from __future__ import annotations

import msgspec


def encode_caused(caused: object) -> bytes:
    """Effects and frames, with object keys sorted."""
    return msgspec.json.encode(caused, order="deterministic")
