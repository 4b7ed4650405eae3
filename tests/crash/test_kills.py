"""kill -9 of servers at random instants under load: nothing that a client was told is lost, nothing comes twice, nothing
stale is heard, and every log replays exactly. Real processes, real sockets, the project's own client."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import trio

from tests.crash.cluster import Cluster, Talker, facts, judge, open_cluster
from tests.store.backends import empty_database, in_real_time_for, names

pytestmark = pytest.mark.crash

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
KILLS = 50 if FULL else 6
TALKERS = 3
SEED = 4_711


async def talk_while(cluster: Cluster, harm: object) -> list[Talker]:
    """Several conversations go on while ``harm`` is done; then each must get one more answer in peace."""
    talkers = [Talker(cluster, random.Random(SEED + number)) for number in range(TALKERS)]
    cluster.talkers = talkers
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        for talker in talkers:
            nursery.start_soon(talker.talk, stop)
        while any(not talker.told.numbers for talker in talkers):
            await trio.sleep(0.05)
        await harm()  # type: ignore[operator]
        stop.set()
    for talker in talkers:
        print(facts(talker))
    await judge(cluster.url, talkers)
    return talkers


SETTINGS = [("postgresql", 2), ("sqlite", 1)]


@pytest.mark.parametrize(("backend", "servers"), [pair for pair in SETTINGS if pair[0] in names()])
@in_real_time_for(1_700 if FULL else 170)
async def test_kill_9_in_mid_answer_under_traffic(backend: str, servers: int, tmp_path: Path) -> None:
    """Two servers on one PostgreSQL: the other one carries on. One on a SQLite file: it comes back."""
    async with open_cluster(empty_database(backend, tmp_path), tmp_path, count=servers, seed=SEED) as cluster:

        async def harm() -> None:
            for _ in range(KILLS):
                heard = {id(talker): len(talker.told.numbers) for talker in cluster.talkers}
                with trio.move_on_after(20):  # nobody is hurt by a second kill before it has come back from the first
                    while any(len(talker.told.numbers) == heard[id(talker)] for talker in cluster.talkers):
                        await trio.sleep(0.02)
                await trio.sleep(cluster.chance.uniform(0, 1.5))
                await cluster.kill_and_restart()

        talkers = await talk_while(cluster, harm)
        reconnects = sum(talker.client.statistics().reconnects for talker in talkers if talker.client)
        assert reconnects >= KILLS // 2, "the kills have hurt nobody: the test has tested nothing"
