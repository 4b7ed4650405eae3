"""kill -9 of servers at random instants under load: nothing that a client was told is lost, nothing comes twice, nothing
stale is heard, and every log replays exactly. Real processes, real sockets, the project's own client."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from adapters.bench.own_server import ServerProcess
from tests.crash.cluster import Cluster, Talker, facts, judge, open_cluster
from tests.store.backends import empty_database, in_real_time_for, names

pytestmark = pytest.mark.crash

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
KILLS = 150 if FULL else 50
TALKERS = 4
SEED = 4_711
PAUSE_S = 0.6
PROGRESS_S = 20.0


async def talk_while(
    cluster: Cluster, harm: Callable[[], Awaitable[None]], count: int = TALKERS, **habits: Any
) -> list[Talker]:
    """Several conversations go on while ``harm`` is done; then each must get one more answer in peace."""
    talkers = [Talker(cluster, random.Random(SEED + number), **habits) for number in range(count)]
    cluster.talkers = talkers
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        for talker in talkers:
            nursery.start_soon(talker.talk, stop)
        while any(not talker.told.numbers for talker in talkers):
            await trio.sleep(0.05)
        await harm()
        stop.set()
    for talker in talkers:
        print(facts(talker))
    await judge(cluster.url, talkers)
    return talkers


SETTINGS = [("postgresql", 3), ("sqlite", 1)]


@pytest.mark.limit(wall_s=900)
@pytest.mark.parametrize(("backend", "servers"), [pair for pair in SETTINGS if pair[0] in names()])
@in_real_time_for(3_000 if FULL else 850)
async def test_kill_9_at_random_instants_under_traffic(backend: str, servers: int, tmp_path: Path) -> None:
    """Several servers on one PostgreSQL: the others carry on, and are killed too while the first comes back. One on a SQLite
    file: it comes back."""
    async with open_cluster(empty_database(backend, tmp_path), tmp_path, count=servers, seed=SEED) as cluster:
        began = trio.current_time()
        broken: list[int] = []
        talkers = await talk_while(cluster, lambda: kill_again_and_again(cluster, KILLS, broken))
        resumed = sum(talker.client.statistics().reconnects for talker in talkers if talker.client)
        print(f"{KILLS} kills on {backend} in {trio.current_time() - began:.0f} s", end=": ")
        print(f"{sum(broken)} connections broken, {resumed} sessions resumed")
        assert sum(map(bool, broken)) >= 0.9 * KILLS, f"the kills have hurt nobody: {broken}"
        assert resumed >= KILLS / 3, "hardly anybody came back between two kills"


async def kill_again_and_again(cluster: Cluster, kills: int, broken: list[int]) -> None:
    """Each kill at a random instant, once somebody was told something since the last one: in mid-answer, or while clients
    come back. It hits a server that somebody is connected to; ``broken`` gets how many connections it broke."""
    ready = set(cluster.servers)

    async def restart(server: ServerProcess) -> None:
        server.start()
        await server.ready()
        ready.add(server)

    def victims() -> list[ServerProcess]:
        return [server for server in cluster.servers if server in ready and cluster.connected_to(server)]

    async with trio.open_nursery() as nursery:
        for _ in range(kills):
            told = told_so_far(cluster)
            with trio.move_on_after(PROGRESS_S):
                while told_so_far(cluster) == told:
                    await trio.sleep(0.02)
            await trio.sleep(cluster.chance.uniform(0, PAUSE_S))
            with trio.move_on_after(PROGRESS_S):
                while not victims():
                    await trio.sleep(0.02)
            while len(ready) < min(2, len(cluster.servers)):
                await trio.sleep(0.02)
            victim = cluster.chance.choice(victims() or sorted(ready, key=cluster.servers.index))
            ready.discard(victim)
            broken.append(len(cluster.connected_to(victim)))
            victim.kill()
            cluster.lost(victim)
            nursery.start_soon(restart, victim)


def told_so_far(cluster: Cluster) -> int:
    """Numbered events that all clients together were told."""
    return sum(len(talker.told.numbers) for talker in cluster.talkers)
