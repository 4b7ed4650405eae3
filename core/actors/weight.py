"""Roughly how many bytes a message keeps in memory: what the bounds of the queues here are counted in. Every message is
weighed, so this is made to be quick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any

import attrs

from core.session.conversation import WIDE_CHAR_BYTES

VALUE_BYTES = 16
"""Whatever is no text and no bytes, and what stands around those that are."""


def weight(value: Any) -> int:
    """Of a string, bytes, an attrs object, or any nesting of them in tuples, lists and JSON objects."""
    size_bytes = 0
    parts = [value]
    for part in parts:  # which grows as it is walked: a call for each part would cost three times as much
        size_bytes += VALUE_BYTES
        kind = type(part)
        if kind is str:
            size_bytes += len(part) if part.isascii() else len(part) * WIDE_CHAR_BYTES
        elif kind is bytes:
            size_bytes += len(part)
        elif kind is dict:  # a frame's payload, which has text for keys: all of them at once
            keys = "".join(part)
            size_bytes += VALUE_BYTES * len(part) + len(keys) * (1 if keys.isascii() else WIDE_CHAR_BYTES)
            parts += part.values()
        else:
            parts_of = _PARTS[kind]
            if parts_of is not None:
                parts += parts_of(part)
    return size_bytes


PartsOf = Callable[[Any], Iterable[Any]] | None
"""How to get at what a value of some class holds; None: it holds nothing."""


class _Parts(dict[type, PartsOf]):
    """Found out once for each class."""

    def __missing__(self, kind: type) -> PartsOf:
        found = self[kind] = _parts_of(kind)
        return found


_PARTS = _Parts()


def _parts_of(kind: type) -> PartsOf:
    if issubclass(kind, tuple | list):
        return iter
    if issubclass(kind, Mapping):
        return lambda mapping: chain(mapping.keys(), mapping.values())
    names = [field.name for field in attrs.fields(kind)] if attrs.has(kind) else []
    if not names:
        return None
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)
