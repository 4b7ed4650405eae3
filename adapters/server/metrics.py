"""What a server counts, in Prometheus' text form. One registry a server, so that several may live in one process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import accumulate
from weakref import WeakKeyDictionary

import attrs
import trio
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from adapters.server.admission import Admission
from adapters.wire.schema import names
from core.actors.session import Session, Watch
from core.actors.supervisor import Supervisor
from core.ports.projection import Frame
from core.ports.runtime import Durations, ModelStatistics, Runtime
from core.ports.store import Store
from core.session import events as e
from core.session.endings import CUT_REASONS, FAILED_BY_SERVER

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

FAST_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SPEECH_BUCKETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0, 3.0, 5.0)

LAG_EVERY_S = 0.1


class Metrics(Watch):
    """Counts for one server; also the actors' Watch."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.responses = self._counter("duologue_responses", "Answers that ended, by status", ["status"])
        self.refusals = self._counter("duologue_refusals", "Client commands that were refused, by code", ["code"])
        self.problems = self._counter("duologue_bad_frames", "Frames that never became a command, by code", ["code"])
        self.stale = self._counter("duologue_stale_outputs_dropped", "Model output of an epoch that was over", [])
        self.input_lost_chunks = self._counter(
            "duologue_input_lost_chunks", "Audio that the model's ear did not get, since the worker was behind", []
        )
        self.cuts = self._counter("duologue_cuts", "Answers that were cut, by reason", ["reason"])
        self.upgrades = self._counter("duologue_connections", "WebSocket connections, by outcome", ["outcome"])
        self.accepts_failed = self._counter(
            "duologue_accepts_failed", "Times that there was no file descriptor for a connection", []
        )
        self.not_admitted = self._counter("duologue_not_admitted", "Clients that got no session, by code", ["code"])
        self.barge_in_s = self._histogram(
            "duologue_barge_in_seconds", "Command to cut -> cancelled on the wire", FAST_BUCKETS
        )
        self.first_audio_s = self._histogram(
            "duologue_first_audio_seconds", "End of the user's speech -> first audio on the wire", SPEECH_BUCKETS
        )
        self.append_s = self._histogram("duologue_store_append_seconds", "Batch queued -> durable", FAST_BUCKETS)
        self.last_lag_s = 0.0
        """How late the event loop woke when it was last looked at."""
        self.lag_s = self._histogram("duologue_event_loop_lag_seconds", "How late the event loop wakes", FAST_BUCKETS)
        self._speech_ended_ns: WeakKeyDictionary[Session, int] = WeakKeyDictionary()
        """Gone with the session, also where that ends without a word in the log (it moves to another server)."""

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def render(self) -> bytes:
        """The whole page."""
        return generate_latest(self.registry)

    def watch_service(self, supervisor: Supervisor, runtime: Runtime, store: Store) -> None:
        """Show what these know of themselves, asked at each scrape."""
        self.registry.register(_Service(supervisor, runtime, store))

    def watch_admission(self, admission: Admission) -> None:
        """Show how the door stands, asked at each scrape."""
        self.registry.register(_Door(admission))

    async def measure_lag(self) -> None:
        """Sleep and see how late it gets."""
        while True:
            due = trio.current_time() + LAG_EVERY_S
            await trio.sleep_until(due)
            self.last_lag_s = max(0.0, trio.current_time() - due)
            self.lag_s.observe(self.last_lag_s)

    # -- the actors' Watch ----------------------------------------------------------------------------------------

    def stepped(self, session: Session, records: tuple[e.Record, ...]) -> None:
        """Count what the log says."""
        for record in records:
            match record.event:
                case e.ResponseEnded(status=status):
                    self.responses.labels(status).inc()
                case e.Refused(code=code):
                    self.refusals.labels(code).inc()
                case e.EpochBump(disposition="cut", reason=reason):
                    self.cuts.labels(reason if reason in _CUT_REASONS else "other").inc()
                case e.SpeechStopped(timings=timings):
                    last_speech = dict(timings).get("last_speech")
                    if last_speech is not None:
                        self._speech_ended_ns[session] = last_speech

    def stale_output(self, session: Session) -> None:
        """Count it."""
        self.stale.inc()

    def input_lost(self, session: Session) -> None:
        """Count it."""
        self.input_lost_chunks.inc()

    def durable(self, session: Session, waited_s: float) -> None:
        """Observe it."""
        self.append_s.observe(waited_s)

    def take_speech_end(self, session: Session) -> int | None:
        """When the user stopped speaking (wall clock, ns), once for each turn."""
        return self._speech_ended_ns.pop(session, None)


_CUT_REASONS = frozenset({*CUT_REASONS, *FAILED_BY_SERVER})
"""Reasons that are named in metrics: of cuts, and of answers that the session itself has failed, which it cuts. Any
other is counted as such: metrics must not have labels without bound."""


@attrs.define
class WireMeter:
    """Latencies of one attachment, as its socket sees them."""

    metrics: Metrics
    session: Session
    asked_to_cut_at: float | None = None
    _speaking: str | None = None

    def asked_to_cut(self) -> None:
        """A command came in that cuts an answer."""
        self.asked_to_cut_at = time.perf_counter()

    def encoded(self, frame: Frame) -> None:
        """A frame goes to the wire."""
        kind = frame.payload["type"]
        if frame.audio_field and frame.response_id != self._speaking:
            self._speaking = frame.response_id
            ended_ns = self.metrics.take_speech_end(self.session)
            if ended_ns is not None:
                self.metrics.first_audio_s.observe(max(0.0, (time.time_ns() - ended_ns) / 1e9))
        elif self.asked_to_cut_at is not None and kind in (names.RESPONSE_DONE, names.OUTPUT_CLEARED, names.ERROR):
            if kind != names.ERROR:
                self.metrics.barge_in_s.observe(time.perf_counter() - self.asked_to_cut_at)
            self.asked_to_cut_at = None


class _Door(Collector):
    """What the admission says of itself."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: the names are this class's own."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Now."""
        free = float(self._admission.is_open)
        yield _gauge("duologue_admission_open", "A session that is asked for now begins at once", free)
        yield _gauge("duologue_admission_waiting", "Clients that wait for a session", self._admission.queue_length)


class _Service(Collector):
    """What supervisor, runtime and store say of themselves."""

    def __init__(self, supervisor: Supervisor, runtime: Runtime, store: Store) -> None:
        self._supervisor, self._runtime, self._store = supervisor, runtime, store

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: the names are this class's own."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Now."""
        sessions, worker, store = (
            self._supervisor.statistics(),
            self._runtime.statistics(),
            self._store.statistics(),
        )
        yield _gauge("duologue_sessions", "Live sessions", sessions.sessions)
        yield _gauge("duologue_sessions_attached", "Live sessions with a client", sessions.attached)
        yield _gauge("duologue_sessions_max", "Sessions that this server may hold", sessions.sessions_max)
        yield _total("duologue_sessions_opened", "Sessions opened since the start", sessions.opened)
        yield _total("duologue_sessions_resumed", "Resumes since the start", sessions.resumed)
        yield _total("duologue_sessions_failed", "Sessions that crashed or lost their log", sessions.failed)
        yield _gauge("duologue_runtime_up", "A worker is up", float(worker.up))
        yield _gauge("duologue_runtime_workers", "Workers that there should be", worker.workers)
        yield _gauge("duologue_runtime_workers_up", "Of these: up", worker.workers_up)
        yield _gauge("duologue_runtime_sessions_waiting", "Sessions without a worker", worker.sessions_waiting)
        yield _total("duologue_runtime_restarts", "Workers started again", worker.restarts)
        yield _gauge("duologue_runtime_queue_items", "Messages that wait for the workers", worker.queue_items)
        yield _gauge("duologue_runtime_queue_bytes", "Their bytes", worker.queue_bytes)
        yield _gauge("duologue_store_queue_items", "Batches that wait for the writer", store.queue_items)
        yield _gauge("duologue_store_queue_bytes", "Their bytes", store.queue_bytes)
        yield _total("duologue_store_batches", "Batches written", store.appended_batches)
        yield _total("duologue_store_commits", "Transactions committed", store.commits)
        frames, size = 0, 0
        for session in tuple(self._supervisor.sessions.values()):
            waiting = session.outbox.statistics()
            frames, size = frames + waiting.waiting_frames, size + waiting.waiting_bytes
        yield _gauge("duologue_outbox_frames", "Frames that wait for sockets", frames)
        yield _gauge("duologue_outbox_bytes", "Their bytes", size)
        if worker.model is not None:
            yield from of_model(worker.model)


def of_model(model: ModelStatistics) -> Iterator[Metric]:
    """Totals begin anew with each worker, as counters may."""
    yield _gauge("duologue_lanes_open", "Lanes that the model holds", model.lanes_open)
    yield _gauge("duologue_lanes_parked", "Of these: without memory of the engine's", model.lanes_parked)
    yield _gauge("duologue_units_waiting", "Units that wait for the model", model.units_waiting)
    yield _gauge("duologue_units_running", "Units that the model works on", model.units_running)
    yield _gauge("duologue_kv_used_ratio", "Share of the KV memory in use", model.kv_used)
    yield _gauge("duologue_tokens_per_second", "Tokens decoded, over the last seconds", model.tokens_per_s)
    yield _total("duologue_units_done", "Units that ended", model.units_done)
    yield _total("duologue_unit_deadline_misses", "Units that ended too late", model.deadline_misses)
    yield _total("duologue_units_refused", "Units and lanes that admission refused", model.refused)
    yield _total("duologue_lanes_failed", "Answers that ended with an error of the model's", model.lanes_failed)
    yield _total("duologue_lanes_slid", "Lanes whose window slid", model.lanes_slid)
    yield _total("duologue_tokens_in", "Tokens that the model was given", model.tokens_in)
    yield _total("duologue_tokens_out", "Tokens that the model decoded", model.tokens_out)
    yield _total("duologue_prefix_tokens_asked", "Prompt tokens of new requests", model.prefix_tokens_asked)
    yield _total("duologue_prefix_tokens_cached", "Of these: found in the prefix cache", model.prefix_tokens_cached)
    yield _durations("duologue_unit_seconds", "A unit's arrival -> its end", model.unit)
    yield _durations("duologue_unit_queue_seconds", "A unit's arrival -> its start", model.queue)
    yield _durations("duologue_first_token_seconds", "An answer asked for -> its first token", model.first_token)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _total(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _durations(name: str, text: str, times: Durations) -> Metric:
    """Prometheus' buckets count everything up to their bound."""
    bounds = [*(str(bound / 1000) for bound in times.bounds_ms), "+Inf"]
    buckets = list(zip(bounds, accumulate(times.counts), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=times.total_ms / 1000)
