"""Digests. A body's name is the digest of its bytes; a session's chain is a digest over its whole log: what was stored, and
what it caused.

Each batch has a link of the chain. A link's first byte is the rule by which it was made, so that a rule can change in the
middle of a log:

1. Links of 16 bytes, without that byte: a digest of the link before and of the effects and wire events of the batch. Batches
   that the store writes by itself (the first one, a change of the owner) leave the chain as it is. Not written any more.
2. The byte 2, a digest of the records as they are stored, and one of that and of what they caused (decision 023). So a
   replay finds records that were altered before it folds them, and tells them from a fold that has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

DIGEST_BYTES = 16
CHAIN_START = bytes(DIGEST_BYTES)
CHAIN_RULE = 2

CHAIN_BEGIN_BYTES = 1 + DIGEST_BYTES
"""So much of a link by rule 2 is its ``chain_link_begin``."""

NOTHING_CAUSED = bytes(DIGEST_BYTES)
"""In the place of ``caused_digest`` in a batch that the store writes by itself."""


def body_digest(data: bytes) -> str:
    """The name of a body: blake2b-128 of its bytes, in hex."""
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def caused_digest(caused: bytes) -> bytes:
    """Of what a batch caused (effects and wire events), encoded."""
    return blake2b(caused, digest_size=DIGEST_BYTES).digest()


def chain_link(previous: bytes, batch_id: str, term: int, records: Iterable[str], caused: bytes) -> bytes:
    """The next link by rule 2. ``previous``: the link before; ``records`` as they are stored (core.ports.store.Row.line);
    ``caused``: a ``caused_digest``."""
    return whole_chain_link(chain_link_begin(previous, batch_id, term, records), caused)


def chain_link_begin(previous: bytes, batch_id: str, term: int, records: Iterable[str]) -> bytes:
    """The part of a link by rule 2 that says nothing of what was caused. No two different batches, or links before them, come
    to the same bytes here."""
    told = f"{previous.hex()} {term} {len(batch_id)} {batch_id}{''.join(records)}"
    return bytes((CHAIN_RULE,)) + blake2b(told.encode(), digest_size=DIGEST_BYTES).digest()


def whole_chain_link(begin: bytes, caused: bytes) -> bytes:
    """A link by rule 2. ``begin``: its ``chain_link_begin``; ``caused``: a ``caused_digest``."""
    return begin + blake2b(begin + caused, digest_size=DIGEST_BYTES).digest()


def first_chain_link(previous: bytes, caused: bytes) -> bytes:
    """The next link by rule 1. ``caused``: effects and wire events, encoded."""
    return blake2b(caused, digest_size=DIGEST_BYTES, key=previous[: blake2b.MAX_KEY_SIZE]).digest()
