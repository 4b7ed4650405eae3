"""What the server counts beside what the front's tests look at."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, cast

import attrs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from adapters.server.metrics import Metrics, of_model
from core.actors.session import Session
from core.ports.runtime import Durations, ModelStatistics
from core.session import events as e


class Stand:
    """In place of a session."""


def heard(metrics: Metrics, session: Any) -> None:
    stopped = e.SpeechStopped(1, 100, "item", timings=(("last_speech", 77),))
    metrics.stepped(session, (e.Record(1, 1, 0, stopped),))


def test_the_end_of_speech_is_told_once() -> None:
    metrics, session = Metrics(), cast(Session, Stand())
    heard(metrics, session)
    assert (metrics.take_speech_end(session), metrics.take_speech_end(session)) == (77, None)


def test_nothing_is_kept_of_sessions_that_leave_without_a_word() -> None:
    """A session that moves to another server closes nothing in its log."""
    metrics = Metrics()
    for _ in range(100):
        heard(metrics, Stand())
    gc.collect()
    assert len(metrics._speech_ended_ns) == 0


class Page(Collector):
    """One model's figures alone."""

    def __init__(self, model: ModelStatistics) -> None:
        self._model = model

    def collect(self) -> Iterator[Metric]:
        return of_model(self._model)


def test_a_models_figures_are_on_the_page() -> None:
    """Every field, each under a name of its own; buckets hold all that is below them."""
    numbers = {
        field.name: number
        for number, field in enumerate(attrs.fields(ModelStatistics), 2)
        if not isinstance(field.default, Durations)
    }
    model = ModelStatistics(**numbers, unit=Durations((100.0, 1_000.0), (5, 3, 1), 4_200.0))  # type: ignore[arg-type]
    registry = CollectorRegistry()
    registry.register(Page(model))
    page = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    plain = [sample.value for sample in samples if "_seconds" not in sample.name or "tokens" in sample.name]
    assert sorted(plain) == sorted(numbers.values())
    assert len({sample.name for sample in samples if not sample.labels}) == len(numbers) + 2 * 3
    buckets = {s.labels["le"]: s.value for s in samples if s.name == "duologue_unit_seconds_bucket"}
    assert buckets == {"0.1": 5, "1.0": 8, "+Inf": 9}
    assert registry.get_sample_value("duologue_unit_seconds_sum") == 4.2
