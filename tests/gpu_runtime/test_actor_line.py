"""What lies between a host and an actor somewhere else, without a cluster: the actor's methods are called in threads."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from core.ports.runtime import Produced, RuntimeLost, RuntimeReady
from gpu_runtime.cluster import actor as actors
from gpu_runtime.cluster.actor import LineUnknown, WorkerActor
from gpu_runtime.cluster.line import LineLink, WorkerGone
from gpu_runtime.host import ModelUnavailable, WorkerRuntime
from gpu_runtime.host.link import Link
from gpu_runtime.host.runtime import open_workers
from gpu_runtime.plugin import Progress
from tests.gpu_runtime.stories import Caller

pytestmark = pytest.mark.realtime

QUICK = {"unit_ms": 40, "rtf": 0.25, "first_audio_ms": 5, "answer_units": 6}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process must not end with an actor, so what ends with an actor's process is ended here."""
    monkeypatch.setattr(actors, "fail_loudly", lambda: None)
    made: list[WorkerActor] = []
    make = WorkerActor.__init__

    def noted(self: WorkerActor, model: str) -> None:
        make(self, model)
        made.append(self)

    monkeypatch.setattr(WorkerActor, "__init__", noted)
    yield
    for actor in made:
        actor._ours.close()
        if actor._line is None:
            actor._theirs.close()
        else:
            assert actor._ended.wait(20)


class Nearby:
    """gpu_runtime.cluster.line.Calls of an actor in this process. ``restart`` is what Ray does after a death."""

    def __init__(self) -> None:
        self.actor = WorkerActor("scripted")
        self.kills = 0
        self.lines = 0

    def restart(self) -> None:
        old, self.actor = self.actor, WorkerActor("scripted")
        old.let_go(f"line{self.lines}")

    async def start(self, _progress: Progress) -> Link:
        self.lines += 1
        pid, _machine = self.actor.open(f"line{self.lines}")
        return LineLink(Line(self, f"line{self.lines}"), pid)


class Line:
    def __init__(self, place: Nearby, name: str) -> None:
        self._place = place
        self._name = name

    async def push(self, data: bytes) -> None:
        await self._call(lambda actor: partial(actor.push, self._name, data))

    async def pull(self) -> bytes:
        data: bytes = await self._call(lambda actor: partial(actor.pull, self._name))
        return data

    async def let_go(self) -> None:
        await self._call(lambda actor: partial(actor.let_go, self._name))

    async def wait(self) -> int:
        status: int = await self._call(lambda actor: partial(actor.wait, self._name))
        return status

    def kill(self) -> None:
        self._place.kills += 1
        self._place.restart()

    async def _call(self, method: Callable[[WorkerActor], Callable[[], Any]]) -> Any:
        actor = self._place.actor
        try:
            result = await trio.to_thread.run_sync(method(actor), abandon_on_cancel=True)
        except LineUnknown as error:
            raise WorkerGone("its process was started again") from error
        if actor is not self._place.actor:  # it died over the call
            raise WorkerGone("its process is gone")
        return result


@asynccontextmanager
async def nearby(**settings: Any) -> AsyncIterator[tuple[WorkerRuntime, Nearby]]:
    place = Nearby()
    async with open_workers("scripted", [place.start], QUICK | settings) as runtime:
        yield runtime, place


async def test_a_conversation_goes_over_the_line() -> None:
    async with nearby() as (runtime, place):
        assert runtime.pid == os.getpid()
        caller = Caller(runtime)
        caller.open()
        caller.ask("what is the time")
        assert len(await caller.answered()) == 6
    assert not place.kills, "it let go by itself"
    with pytest.raises(LineUnknown):
        place.actor.open("another")


async def test_a_restarted_actor_gets_nothing_of_the_old_line() -> None:
    async with nearby() as (runtime, place):
        caller = Caller(runtime)
        caller.open()
        caller.ask("units=100")
        await caller.wait_for(Produced)
        place.restart()
        caller.ask("into the void")
        assert (await caller.wait_for(RuntimeLost)).reason in ("its process is gone", "its process was started again")
        await caller.wait_for(RuntimeReady)
        assert place.lines == 2
        caller.open(epoch=2)
        caller.ask("hello", epoch=2, response_id="r2")
        await caller.until(lambda: len(caller.units("r2")) == 6)
    assert not place.kills


async def test_a_worker_that_is_killed_from_here_is_another_one_afterwards() -> None:
    async with nearby() as (runtime, place):
        caller = Caller(runtime)
        caller.open()
        await caller.barrier()
        runtime.kill_worker()
        await caller.wait_for(RuntimeReady)
        caller.open()
        await caller.barrier()
        assert place.kills


async def test_a_model_that_cannot_be_loaded_says_so_over_the_line() -> None:
    with pytest.raises(ModelUnavailable, match="fetch the script first"):
        async with nearby(load_error="fetch the script first"):
            pytest.fail("it came up")


def test_a_line_is_taken_once() -> None:
    actor = WorkerActor("scripted")
    actor.open("first")
    with pytest.raises(LineUnknown):
        actor.open("second")
    for call in (partial(actor.push, "second", b""), partial(actor.pull, "second"), partial(actor.wait, "second")):
        with pytest.raises(LineUnknown):
            call()
    actor.let_go("first")
    assert actor.wait("first") == 0
    actor.push("first", b"dropped")
    assert actor.pull("first") == b""
