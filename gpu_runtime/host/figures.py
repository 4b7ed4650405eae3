"""What several models say of their work, as one model would say it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import attrs

from core.ports.runtime import Durations, ModelStatistics


def together(figures: Iterable[ModelStatistics]) -> ModelStatistics | None:
    """Counts and rates added up, the share of KV memory as the mean. None of none."""
    all_of_them = list(figures)
    if not all_of_them:
        return None
    values: dict[str, Any] = {
        field.name: _combined(field.name, [getattr(one, field.name) for one in all_of_them])
        for field in attrs.fields(ModelStatistics)
    }
    return ModelStatistics(**values)


def _combined(name: str, values: Sequence[Any]) -> Any:
    if isinstance(values[0], Durations):
        return reduce(_added, values)
    total = sum(values)
    return total / len(values) if name == "kv_used" else total


def _added(first: Durations, second: Durations) -> Durations:
    """A model that measured nothing yet has no bounds; of two that differ in them the first counts."""
    if first.bounds_ms != second.bounds_ms:
        return first if first.bounds_ms else second
    counts = tuple(one + other for one, other in zip(first.counts, second.counts, strict=True))
    return Durations(first.bounds_ms, counts, first.total_ms + second.total_ms)
