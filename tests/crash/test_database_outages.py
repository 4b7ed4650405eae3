"""PostgreSQL restarts, or is gone for a while, under load. Conversations pause and go on, or end with a code, and nothing
that a client was told is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.crash.cluster import open_cluster
from tests.crash.outages import running_postgres, stop_at_once, url_of
from tests.crash.test_kills import talk_while
from tests.store.backends import in_real_time_for

pytestmark = [pytest.mark.crash, pytest.mark.needs("pgserver")]

GONE_S = 20.0


@pytest.fixture
def postgres() -> Iterator[Any]:
    with running_postgres() as server:
        yield server


@in_real_time_for(170)
async def test_postgres_is_restarted_under_load(postgres: Any, tmp_path: Path) -> None:
    async with open_cluster(url_of(postgres), tmp_path) as cluster:

        async def harm() -> None:
            for _ in range(3):
                await trio.sleep(cluster.chance.uniform(0.3, 1.0))
                await trio.to_thread.run_sync(stop_at_once, postgres)
                await trio.to_thread.run_sync(postgres.ensure_postgres_running)

        await talk_while(cluster, harm)


@in_real_time_for(170)
async def test_postgres_is_gone_and_conversations_pause_and_go_on(postgres: Any, tmp_path: Path) -> None:
    """With patience nobody is told to resume: sockets stay, and are silent meanwhile."""
    async with open_cluster(url_of(postgres), tmp_path, flags=("--store-patience-s", "120")) as cluster:
        before: list[float] = []

        async def harm() -> None:
            await trio.sleep(1)
            await trio.to_thread.run_sync(stop_at_once, postgres)
            before.append(trio.current_time())
            await trio.sleep(GONE_S)
            await trio.to_thread.run_sync(postgres.ensure_postgres_running)

        talkers = await talk_while(cluster, harm)
        assert all(talker.told.at > before[0] + GONE_S for talker in talkers)
        assert sum(talker.client.statistics().reconnects for talker in talkers if talker.client) == 0


@in_real_time_for(170)
async def test_postgres_is_gone_and_conversations_end_with_a_code(postgres: Any, tmp_path: Path) -> None:
    """Without patience sessions are let go with 1012 at once; clients try again until the store is back."""
    async with open_cluster(url_of(postgres), tmp_path, flags=("--store-patience-s", "0")) as cluster:

        async def harm() -> None:
            await trio.sleep(1)
            await trio.to_thread.run_sync(stop_at_once, postgres)
            await trio.sleep(GONE_S)
            await trio.to_thread.run_sync(postgres.ensure_postgres_running)

        talkers = await talk_while(cluster, harm)
        assert sum(talker.client.statistics().reconnects for talker in talkers if talker.client) > 0
