"""Counts in a frozen record: a new one for each change, so that whoever was given one keeps what it saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs

Counts = TypeVar("Counts", bound=attrs.AttrsInstance)


def added(counts: Counts, **more: int) -> Counts:
    """``counts`` with so much more in these fields."""
    evolve: Callable[..., Counts] = attrs.evolve
    return evolve(counts, **{name: getattr(counts, name) + value for name, value in more.items()})
