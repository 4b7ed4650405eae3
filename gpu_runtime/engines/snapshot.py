"""What an engine's lanes did and hold, in one piece of plain data: a worker sends it, a server shows it."""

from __future__ import annotations

import attrs

from gpu_runtime.engines.port import EngineStatistics
from gpu_runtime.scheduler.units import SchedulerStatistics


@attrs.frozen
class LaneSnapshot:
    """``LaneSnapshot(lanes.statistics())``, or ``UnitServer.snapshot`` where a scheduler stands in front. Numbers, tuples of
    numbers and attrs classes of them only: msgspec carries it as it is."""

    engine: EngineStatistics
    units: SchedulerStatistics | None = None
    """None: no unit scheduler stands before the lanes, so there are no deadlines to miss."""
