"""A worker's place in a cluster, without the cluster."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from gpu_runtime.cluster.opening import ClusterOptions

pytestmark = [pytest.mark.needs("ray"), pytest.mark.realtime]


class Answered:
    """A Ray object, and the method whose call gives it."""

    def __init__(self, outcome: tuple[int, str] | Exception) -> None:
        self._outcome = outcome

    def remote(self, _line: str) -> Answered:
        return self

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        if isinstance(self._outcome, Exception):
            future.set_exception(self._outcome)
        else:
            future.set_result(self._outcome)
        return future


class Actor:
    def __init__(self, outcome: tuple[int, str] | Exception) -> None:
        self.open = Answered(outcome)


class ActorClass:
    """Makes actors whose ``open`` comes to one outcome after the other."""

    def __init__(self, outcomes: list[tuple[int, str] | Exception]) -> None:
        self._outcomes = outcomes
        self.makers: list[int] = []

    def options(self, **_options: object) -> ActorClass:
        return self

    def remote(self, _model: str) -> Actor:
        self.makers.append(threading.get_ident())
        return Actor(self._outcomes.pop(0))


async def test_an_actor_that_was_ended_for_good_is_made_anew_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.exceptions import ActorDiedError

    from gpu_runtime.cluster import ray_actors

    made = ActorClass([ActorDiedError(), (4_711, "somewhere")])
    monkeypatch.setattr(ray_actors.ray, "remote", lambda _cls: made)
    place = ray_actors.Place("scripted", ClusterOptions(), 0, 60.0)
    link = await place.start(lambda _stage, _fraction: None)
    assert link.pid == 4_711
    assert len(made.makers) == 2
    assert made.makers[1] != threading.get_ident()
