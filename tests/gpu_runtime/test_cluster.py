"""Workers as Ray actors, in a cluster of several nodes on this machine: placement, names, bounds, a node that dies."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from core.ports.runtime import CloseSession, Feed, Produced, RuntimeBusy, RuntimeLost, RuntimeReady
from gpu_runtime.cluster.opening import ClusterOptions, open_cluster
from gpu_runtime.host import ModelUnavailable, WorkerOptions, WorkerRuntime
from gpu_runtime.models.scripted import Identity, identify
from tests.gpu_runtime.ray_nodes import CPUS, RayNodes
from tests.gpu_runtime.stories import Caller, flood

pytestmark = [pytest.mark.ray, pytest.mark.realtime]

QUICK = {"unit_ms": 40, "rtf": 0.25, "first_audio_ms": 5, "answer_units": 6}
BOUNDS = WorkerOptions()
PATIENCE_S = 90.0
"""A process of Ray's takes seconds to start, on a busy machine many."""


@asynccontextmanager
async def two_workers(cluster: RayNodes, options: WorkerOptions | None = None) -> AsyncIterator[WorkerRuntime]:
    async with open_cluster("scripted", ClusterOptions(cluster.address, 2), QUICK, options=options) as runtime:
        with trio.fail_after(PATIENCE_S):
            await runtime.wait_ready(2)
        yield runtime


async def until(done: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not done():
            await trio.sleep(0.05)


def pids(runtime: WorkerRuntime) -> list[int]:
    found = [pid for pid in runtime.pids if pid is not None]
    assert len(found) == len(runtime.pids)
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def talking(runtime: WorkerRuntime, count: int) -> tuple[list[Caller], list[Caller]]:
    """So many sessions in mid-answer: those on worker 0, and the others."""
    callers = [Caller(runtime, f"s{number}") for number in range(count)]
    for caller in callers:
        caller.open()
        caller.ask("units=400")
        await caller.wait_for(Produced)
    first = [caller for caller in callers if runtime.worker_of(caller.session) == 0]
    return first, [caller for caller in callers if caller not in first]


async def go_on(runtime: WorkerRuntime, caller: Caller) -> None:
    """A session whose worker 0 is lost asks anew, of the other."""
    await caller.wait_for(RuntimeReady)
    assert runtime.worker_of(caller.session) == 1
    caller.open(epoch=2)
    caller.ask("hello", epoch=2, response_id="r2")


async def answered_in_full(caller: Caller) -> None:
    """What ``go_on`` asked."""
    units = [identify(unit.audio) for unit in await caller.answered()]
    assert units == [Identity(2, 1, number) for number in range(6)]


async def test_a_node_that_dies_under_load_costs_only_the_sessions_that_were_on_it(cluster: RayNodes) -> None:
    try:
        async with two_workers(cluster) as runtime:
            nodes = [cluster.node_of(pid) for pid in pids(runtime)]
            assert nodes[0] is not nodes[1], "Ray spreads the workers"
            lost, kept = await talking(runtime, 8)
            assert len(lost) == len(kept) == 4
            cluster.kill(nodes[0])
            for caller in lost:
                gone = await caller.wait_for(RuntimeLost, within_s=PATIENCE_S)
                assert gone.reason == "its process or its machine is gone"
                await go_on(runtime, caller)
            for caller in lost:
                await answered_in_full(caller)
                assert len(caller.of(RuntimeLost)) == len(caller.of(RuntimeReady)) == 1
            await until(lambda: runtime.statistics().workers_up == 2)  # on the node that is left
            assert cluster.node_of(pids(runtime)[0]) is nodes[1]
            for caller in kept:
                await caller.wait_for(Produced, 400, within_s=PATIENCE_S)
                assert [identify(unit.audio) for unit in caller.units()] == [Identity(1, 1, n) for n in range(400)]
                assert not caller.of(RuntimeLost)
                assert not caller.of(RuntimeReady)
    finally:
        cluster.restore()


async def test_a_machine_that_vanishes_is_noticed_and_its_sessions_move(cluster: RayNodes) -> None:
    """Nothing of it moves, and no connection breaks: only the time without a sign of life tells."""
    options = WorkerOptions(ping_interval_s=0.5, stall_timeout_s=5.0)
    try:
        async with two_workers(cluster, options) as runtime:
            lost, kept = await talking(runtime, 4)
            gone = cluster.node_of(pids(runtime)[0])
            frozen = cluster.freeze(gone)
            try:
                for caller in lost:
                    told = await caller.wait_for(RuntimeLost, within_s=PATIENCE_S)
                    assert told.reason == "stalled: no sign of life for 5 s"
                    await go_on(runtime, caller)
                for caller in lost:
                    await answered_in_full(caller)
                assert not any(caller.of(RuntimeLost) for caller in kept)
                await until(lambda: runtime.statistics().workers_up == 2)  # Ray, too, has given the machine up
                assert cluster.node_of(pids(runtime)[0]) is not gone
            finally:
                cluster.remove(gone, frozen)
    finally:
        cluster.restore()


async def test_workers_have_names_while_they_live_and_end_with_the_server(cluster: RayNodes) -> None:
    import ray

    async with two_workers(cluster) as runtime:
        processes = pids(runtime)
        named = await trio.to_thread.run_sync(lambda: ray.util.list_named_actors(all_namespaces=True))
        ours = [one for one in named if one["namespace"] == "duologue"]
        assert len(ours) == 2
        assert all(one["name"].startswith("duologue-") for one in ours)
        caller = Caller(runtime)
    assert not caller.of(RuntimeLost)
    await until(lambda: all(is_gone(pid) for pid in processes))


async def test_a_flood_is_refused_and_costs_nobody_else(cluster: RayNodes) -> None:
    """The actor's sockets and Ray's calls hold the server's queue back; its bounds are those of one machine."""
    async with open_cluster("scripted", ClusterOptions(cluster.address), QUICK) as runtime:
        flooder, other = Caller(runtime, "flooder"), Caller(runtime, "other")
        flooder.open()
        other.open()
        await other.barrier()
        (pid,) = pids(runtime)
        os.kill(pid, signal.SIGSTOP)
        try:
            flood(flooder, bytes(100_000))
            assert runtime.statistics().queue_bytes <= BOUNDS.session_bytes_max + BOUNDS.reserve_bytes
            with pytest.raises(RuntimeBusy):
                runtime.send(Feed("flooder", 1, 0, 20, bytes(100_000)))
            runtime.send(CloseSession("flooder"))  # steering has a reserve
            other.ask("do you hear me")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert len(await other.answered()) == 6
        await until(lambda: runtime.statistics().queue_items == 0)
        assert not other.of(RuntimeLost)


async def test_a_process_that_is_killed_is_started_again_by_ray(cluster: RayNodes) -> None:
    async with open_cluster("scripted", ClusterOptions(cluster.address), QUICK) as runtime:
        caller = Caller(runtime)
        (pid,) = pids(runtime)
        os.kill(pid, signal.SIGKILL)
        await caller.wait_for(RuntimeLost, within_s=PATIENCE_S)
        await caller.wait_for(RuntimeReady, within_s=PATIENCE_S)
        assert pids(runtime) != [pid]
        caller.open()
        await caller.barrier()


async def test_auto_is_as_many_as_there_is_room_for(cluster: RayNodes) -> None:
    options = ClusterOptions(cluster.address, workers=None, cpus=float(CPUS))
    async with open_cluster("scripted", options, QUICK) as runtime:
        assert runtime.statistics().workers == 2


async def refused(cluster: RayNodes, options: dict[str, Any], settings: dict[str, Any]) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        async with open_cluster("scripted", ClusterOptions(cluster.address, **options), settings):
            pytest.fail("it came up")
    return str(caught.value)


async def test_what_cannot_be_is_said_in_a_sentence(cluster: RayNodes) -> None:
    text = await refused(cluster, {"gpus": 1.0}, {})
    assert text.startswith(
        "no node of the cluster has 1 GPU and 1 CPU for a worker; in all it has 0 GPU, 4 CPU on 3 nodes."
    )
    assert await refused(cluster, {}, {"load_error": "fetch the script first"}) == "fetch the script first"
