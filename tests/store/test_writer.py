"""The writer thread alone, with a database that is a function: windows, groups, order, and what its death leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from core.ports.store import StoreFailed
from core.session.config import SessionConfig
from core.session.events import SessionOpened
from store.planning import CreateLog
from store.queueing import Attempt, Item, Outcome
from store.sql.writer import CRASHES_MAX, GroupLimits, GroupWriter

FOREVER_S = 3_600.0


def item(name: str, urgent: bool = False, size_bytes: int = 1, patient: bool = False) -> Item:
    request = CreateLog(name, "server", SessionOpened(name, "openai", 1, SessionConfig()), 1)
    return Item(request, lambda outcome: None, size_bytes, Attempt(), urgent, time.monotonic(), patient)


class Bench:
    """A running writer and what came of it."""

    def __init__(self, limits: GroupLimits, execute: Callable[[Sequence[Item]], list[Outcome]] | None = None) -> None:
        self.groups: list[list[str]] = []
        self.answers: list[tuple[str, Outcome]] = []
        self.answered = threading.Semaphore(0)
        self.execute = execute
        self.ended = 0
        self.writer = GroupWriter(self._execute, self._deliver, limits, self._end)
        self.writer.start()

    def _execute(self, items: Sequence[Item]) -> list[Outcome]:
        self.groups.append([item.request.session for item in items])
        return self.execute(items) if self.execute else [None for _ in items]

    def _end(self) -> None:
        self.ended += 1

    def _deliver(self, outcomes: list[tuple[Item, Outcome]]) -> None:
        for item, outcome in outcomes:
            self.answers.append((item.request.session, outcome))
            self.answered.release()

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self.answered.acquire(timeout=10), f"{self.groups}, {self.answers}"


def test_an_urgent_item_takes_the_waiting_ones_with_it_at_once() -> None:
    bench = Bench(GroupLimits(window_s=FOREVER_S))
    for name in ("a", "b"):
        bench.writer.submit(item(name))
    assert not bench.answered.acquire(timeout=0.05), "the window was not kept open"
    bench.writer.submit(item("c", urgent=True))
    bench.wait(3)
    assert bench.groups == [["a", "b", "c"]]
    bench.writer.close()


def test_the_window_closes_by_itself() -> None:
    bench = Bench(GroupLimits(window_s=0.02))
    bench.writer.submit(item("a"))
    bench.wait(1)
    bench.writer.close()
    assert bench.groups == [["a"]]


def test_a_patient_item_waits_for_one_that_is_not() -> None:
    bench = Bench(GroupLimits(window_s=0.02, patience_s=FOREVER_S))
    bench.writer.submit(item("a", patient=True))
    assert not bench.answered.acquire(timeout=0.1), "its window is the longer one"
    bench.writer.submit(item("b"))
    bench.wait(2)
    assert bench.groups == [["a", "b"]]
    bench.writer.close()


def test_patience_ends_by_itself() -> None:
    bench = Bench(GroupLimits(window_s=0.0, patience_s=2.0))
    bench.writer.submit(item("a", patient=True))
    bench.writer.submit(item("b", patient=True))
    bench.wait(2)
    assert bench.groups == [["a", "b"]]
    bench.writer.close()


@pytest.mark.parametrize("limits", [GroupLimits(FOREVER_S, items_max=2), GroupLimits(FOREVER_S, bytes_max=2)])
def test_a_full_group_does_not_wait(limits: GroupLimits) -> None:
    bench = Bench(limits)
    for name in ("a", "b", "c"):
        bench.writer.submit(item(name))
    bench.wait(2)
    bench.writer.close()
    assert bench.groups == [["a", "b"], ["c"]]


def test_what_comes_during_a_commit_is_the_next_group() -> None:
    going_on, started = threading.Event(), threading.Event()

    def slow(items: Sequence[Item]) -> list[Outcome]:
        started.set()
        assert going_on.wait(10)
        return [None for _ in items]

    bench = Bench(GroupLimits(window_s=0.0), slow)
    bench.writer.submit(item("a"))
    assert started.wait(10)
    for name in ("b", "c", "d"):
        bench.writer.submit(item(name))
    going_on.set()
    bench.wait(4)
    bench.writer.close()
    assert bench.groups == [["a"], ["b", "c", "d"]]


def test_closing_writes_what_is_queued_and_takes_nothing_more() -> None:
    bench = Bench(GroupLimits(window_s=FOREVER_S))
    bench.writer.submit(item("a"))
    bench.writer.close()
    assert bench.answers == [("a", None)]
    assert bench.writer.submit(item("b")) is False


def test_a_bug_in_the_writer_fails_its_group_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def buggy(items: Sequence[Item]) -> list[Outcome]:
        if any(item.request.session == "poison" for item in items):
            raise RuntimeError("a bug, and what was said")
        return [None for _ in items]

    bench = Bench(GroupLimits(FOREVER_S, items_max=2), buggy)
    for name in ("a", "poison", "b", "c", "poison", "poison", "d", "e", "poison", "f"):
        assert bench.writer.submit(item(name))
    bench.wait(10)
    bench.writer.close()
    assert [type(outcome) for _, outcome in bench.answers] == [
        *[StoreFailed] * 2,
        *[type(None)] * 2,
        *[StoreFailed] * 2,
        *[type(None)] * 2,
        *[StoreFailed] * 2,
    ]
    assert bench.ended == 0
    assert caplog.text.count("tripped: RuntimeError") == 3
    assert "what was said" not in caplog.text


def test_a_writer_that_trips_again_and_again_answers_everyone_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    def buggy(items: Sequence[Item]) -> list[Outcome]:
        raise RuntimeError("a bug")

    bench = Bench(GroupLimits(FOREVER_S, items_max=2), buggy)
    names = [str(number) for number in range(2 * CRASHES_MAX + 1)]
    for name in names:
        if not bench.writer.submit(item(name)):
            bench.answered.release()
    bench.wait(len(names))
    bench.writer.close()
    assert all(isinstance(outcome, StoreFailed) for _, outcome in bench.answers)
    assert (len(bench.groups), bench.ended) == (CRASHES_MAX, 1)
    assert bench.writer.submit(item("one more")) is False
