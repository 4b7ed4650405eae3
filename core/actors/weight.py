"""Roughly how many bytes a message keeps in memory: what the bounds of the queues here are counted in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VALUE_BYTES = 16
"""Whatever is no text and no bytes, and what stands around those that are."""

WIDE_CHAR_BYTES = 4


def weight(value: Any) -> int:
    """Of a string, bytes, an attrs object, or any nesting of them in tuples, lists and mappings."""
    kind = type(value)
    if kind is str:
        return VALUE_BYTES + len(value) * (1 if value.isascii() else WIDE_CHAR_BYTES)
    if kind is bytes:
        return VALUE_BYTES + len(value)
    fields = getattr(kind, "__attrs_attrs__", None)
    if fields is not None:
        return VALUE_BYTES + sum([weight(getattr(value, field.name)) for field in fields])
    if isinstance(value, tuple | list):
        return VALUE_BYTES + sum([weight(one) for one in value])
    if isinstance(value, Mapping):
        return VALUE_BYTES + sum([weight(key) + weight(one) for key, one in value.items()])
    return VALUE_BYTES
