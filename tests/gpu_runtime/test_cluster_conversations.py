"""The whole path over a Ray cluster: ``duologue serve --ray``, the project's own client, and a node that dies under them."""

from __future__ import annotations

import http.client
import random
from pathlib import Path

import pytest
import trio

from adapters.bench.own_server import launch
from core.session import events as e
from store.opening import open_store
from tests.crash.cluster import Cluster, Talker, facts, judge, open_cluster
from tests.gpu_runtime.ray_nodes import RayNodes

pytestmark = [pytest.mark.ray, pytest.mark.crash, pytest.mark.realtime]

TALKERS = 4
PATIENCE_S = 90.0


async def workers_up(servers: Cluster, count: int) -> None:
    """Until the server's own figures say so."""
    with trio.fail_after(PATIENCE_S):
        while f"duologue_runtime_workers_up {count:.1f}" not in await trio.to_thread.run_sync(figures, servers):
            await trio.sleep(0.2)


def figures(servers: Cluster) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", servers.servers[0].port, timeout=20)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


async def answered(talkers: list[Talker]) -> None:
    """Each has had one more answer, whole."""
    before = [talker.completed for talker in talkers]
    with trio.fail_after(PATIENCE_S):
        while any(talker.completed == had for talker, had in zip(talkers, before, strict=True)):
            await trio.sleep(0.1)


async def losses(url: str, talkers: list[Talker]) -> list[list[e.Event]]:
    """What each talker's log says of a lost worker."""
    found = []
    async with open_store(url) as store:
        for talker in talkers:
            assert talker.client is not None
            assert talker.client.session_id is not None
            batches = await store.read(talker.client.session_id, limit=10**6)
            events = [record.event for batch in batches for record in batch.records]
            found.append([event for event in events if isinstance(event, e.RuntimeChanged) and not event.up])
    return found


@pytest.mark.limit(wall_s=400)
async def test_conversations_on_the_dead_node_go_on_and_the_others_do_not_notice(
    cluster: RayNodes, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/log.sqlite3"
    flags = ("--ray", cluster.address, "--workers", "2")
    try:
        async with open_cluster(url, tmp_path, count=1, flags=flags, launch=launch) as servers:
            await workers_up(servers, 2)
            assert len(cluster.workers()) == 2
            talkers = [Talker(servers, random.Random(number)) for number in range(TALKERS)]
            stop = trio.Event()
            async with trio.open_nursery() as nursery:
                for talker in talkers:
                    nursery.start_soon(talker.talk, stop)
                await answered(talkers)
                cluster.kill(cluster.any_node())
                await answered(talkers)
                await workers_up(servers, 2)
                stop.set()
            for talker in talkers:
                print(facts(talker))
            await judge(url, talkers)
            lost = await losses(url, talkers)
            assert sorted(map(len, lost)) == [0, 0, 1, 1]
            for talker, told in zip(talkers, lost, strict=True):
                assert talker.client is not None
                assert talker.client.statistics().reconnects == 0
                assert talker.told.statuses.count("incomplete") <= len(told)
        with trio.fail_after(PATIENCE_S):  # the server was killed: Ray ends its workers
            while cluster.workers():
                await trio.sleep(0.1)
    finally:
        cluster.restore()
