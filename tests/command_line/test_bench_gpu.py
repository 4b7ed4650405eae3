"""What the GPU benchmark writes: each unit in its place. (It runs where vLLM is; docs/benchmarks/gpu.md has its figures.)"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from adapters.bench.gpu_load import Units
from adapters.bench.gpu_watch import Watch
from gpu_runtime.engines.port import EngineStatistics


def unit(units: Units, session: int, due_s: float, took_ms: float, slid: bool = False) -> None:
    units.session.append(session)
    units.due_s.append(due_s)
    units.times_ms.append(took_ms)
    units.first_ms.append(took_ms / 10)
    units.slid.append(slid)


def test_units_are_written_by_session_and_number_in_whatever_order_they_ended() -> None:
    units = Units(2)
    unit(units, 1, 0.25, 300.04)
    unit(units, 0, 1.75, 200.0, slid=True)
    unit(units, 0, 0.75, 1100.0)
    unit(units, 1, 2.25, 100.0)  # its second one ended with an error
    units.errors.append("s1: lane_full")
    plain = json.loads(json.dumps(units.plain(unit_ms=1_000)))
    assert plain["phases_s"] == [0.75, 0.25]
    assert plain["times_ms"] == [[1100.0, 200.0, None], [300.0, None, 100.0]]
    assert plain["first_ms"] == [[110.0, 20.0, None], [30.0, None, 10.0]]
    assert plain["units with a slide: session, number"] == [[0, 1]]
    assert plain["errors"] == ["s1: lane_full"]


def test_the_last_units_are_told_without_those_before() -> None:
    units = Units(1)
    for number in range(5):
        unit(units, 0, number, 100.0 + number)
    assert units.since(3).times_ms == [103.0, 104.0]


def test_steps_are_told_by_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    hear: list[Callable[[int, int, int], None]] = []
    watch = Watch(EngineStatistics, hear.append)
    for at_s, running, said in ((100.2, 4, 4), (100.3, 6, 6), (100.7, 5, 5), (101.1, 1, 1)):
        monkeypatch.setattr("adapters.bench.gpu_watch.time.monotonic", lambda at_s=at_s: at_s)
        hear[0](running, 0, said)
    told = next(rows for name, rows in watch.seen(100.0).items() if name.startswith("seconds"))
    assert told == [[0, 3, 15, 5.0, 0.4], [1, 1, 1, 1.0, 0.0]]
