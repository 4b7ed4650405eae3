"""What the cascade tells of its work."""

from __future__ import annotations

from core.ports.runtime import LaneEnded, LaneFailed, ModelStatistics
from gpu_runtime.models.cascade.meter import Meter
from gpu_runtime.models.cascade.parts import PartFailed, Usage
from gpu_runtime.models.cascade.stage import StageStatistics
from tests.gpu_runtime.cascade.fakes import Studio
from tests.gpu_runtime.cascade.test_lanes import respond, user

IDLE = StageStatistics(0, 0, 0)


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms * 1_000_000


def test_an_answers_stations_are_timed_from_its_asking() -> None:
    clock = Clock()
    meter = Meter(clock)
    clock.ms = 30
    meter.began(0)
    clock.ms = 60
    meter.text(0, first=True)
    clock.ms = 1_200
    meter.text(0, first=False)
    meter.thought(0, Usage(100, 2))
    clock.ms = 2_000
    told = meter.statistics(None, StageStatistics(waiting=3, running=1, finished=1), lanes_open=5)
    assert (told.queue.total_ms, told.first_token.total_ms, told.unit.total_ms) == (30, 60, 1_200)
    assert [sum(times.counts) for times in (told.queue, told.first_token, told.unit)] == [1, 1, 1]
    assert (told.units_waiting, told.units_running, told.units_done, told.lanes_open) == (3, 1, 1, 5)
    assert (told.tokens_in, told.tokens_out, told.tokens_per_s) == (100, 2, 0.2)


def test_what_the_language_model_says_of_its_lanes_goes_first() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.text(0, first=True)
    meter.thought(0, Usage(1, 1))
    meter.failed()
    told = meter.statistics(ModelStatistics(lanes_open=7, units_done=40), IDLE, lanes_open=1)
    assert (told.lanes_open, told.units_done, told.lanes_failed, sum(told.first_token.counts)) == (7, 40, 1, 1)


def test_answers_and_failures_of_a_cascade_are_counted() -> None:
    with Studio() as studio:
        studio.open()
        respond(studio, user("How are you?"))
        studio.heard.wait_for(LaneEnded)
        studio.model.failure = PartFailed("model_error", "no")
        respond(studio, user("And now?"), response="again")
        studio.heard.wait_for(LaneFailed)
        told = studio.cascade.statistics()
    assert (told.units_done, told.lanes_failed, told.lanes_open) == (1, 1, 1)
    assert (told.tokens_in, told.tokens_out) == (10, 8)
    assert sum(told.queue.counts) == 2
    assert sum(told.first_token.counts) == 1
