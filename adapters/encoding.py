"""The one way in which effects and frames become bytes for the chained digest. A change here is a change of every chain:
it would need a new projection version."""

from __future__ import annotations

import msgspec

encode = msgspec.msgpack.Encoder(order="deterministic").encode
"""Any of attrs classes, mappings, tuples, text, numbers -> bytes, the same for equal values."""
