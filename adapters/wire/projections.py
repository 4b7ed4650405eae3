"""The projections that this server knows, by dialect and version. A log names both in its first event."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from adapters.wire.duplex.projection import DuplexProjection
from adapters.wire.minicpmo.projection import MiniCPMOProjection
from adapters.wire.moshi.projection import MoshiProjection
from adapters.wire.openai.projection import OpenAIProjection
from adapters.wire.openai.versions import VERSIONS
from core.ports.projection import Projection

PROJECTIONS: dict[tuple[str, int], Callable[[], Projection]] = {
    **{
        (make.dialect, number): partial(make, number)
        for make in (OpenAIProjection, DuplexProjection)
        for number in VERSIONS
    },
    (MiniCPMOProjection.dialect, MiniCPMOProjection.version): MiniCPMOProjection,
    (MoshiProjection.dialect, MoshiProjection.version): MoshiProjection,
}


def make_projection(dialect: str, version: int) -> Projection | None:
    """A new projection of that dialect and version; None when this server has none."""
    make = PROJECTIONS.get((dialect, version))
    return None if make is None else make()
