"""Two servers that both believe they own a session: the first one is stopped in mid-answer, or cut off from the database,
its client goes on at the other one, and then it wakes, with frames in its hands and appends in its queue. It writes nothing
more: not to its old socket, not to the log. Real processes, real sockets, the project's own client."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import sqlalchemy
import trio

from adapters.bench.own_server import ServerProcess
from adapters.client.errors import ConnectionLost
from adapters.client.trio_client import DuplexClient
from adapters.replay.replaying import Replay, replay_session
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from adapters.wire.schema import names
from core.session import events as e
from store.opening import open_store
from tests.crash.cluster import INCOMPLETE, Cluster, judge_log, open_cluster
from tests.crash.outages import running_postgres, url_of
from tests.store.backends import in_real_time_for

pytestmark = [pytest.mark.crash, pytest.mark.needs("pgserver")]

SILENT_WITHIN_S = 3.0
"""A server that cannot prove its term writes for one second more; the rest is for a busy machine."""
QUIET_S = 2.0
PORT = 5432


@in_real_time_for(170)
async def test_the_old_owner_is_stopped_and_wakes(tmp_path: Path) -> None:
    with running_postgres() as postgres:
        async with open_cluster(url_of(postgres), tmp_path) as cluster:
            first, other = cluster.servers
            await _the_old_owner_is_away(
                cluster, first, other, lambda: first.signal(signal.SIGSTOP), lambda: first.signal(signal.SIGCONT)
            )


@in_real_time_for(170)
async def test_the_old_owner_is_cut_off_from_the_database(tmp_path: Path) -> None:
    """What it has sent is on its way all the time, and arrives after the other server has taken the session."""
    with running_postgres() as postgres:
        url = url_of(postgres)
        async with open_cable(url) as cable, open_cluster(url, tmp_path, count=1) as cluster:
            (other,) = cluster.servers
            first = cluster.add("cut-off", cable.url)
            first.start()
            await first.ready()
            await _the_old_owner_is_away(cluster, first, other, cable.unplug, cable.plug_in)


async def _the_old_owner_is_away(
    cluster: Cluster, first: ServerProcess, other: ServerProcess, leave: Callable[[], None], wake: Callable[[], None]
) -> None:
    async with _client_at(cluster, first) as old:
        events = old.events()
        await old.send_text("a long answer please")
        async for event in events:
            if event.audio:
                break
        leave()
        await trio.sleep(SILENT_WITHIN_S)
        had = old.statistics().received_events
        await trio.sleep(QUIET_S)
        assert old.statistics().received_events == had, "it writes although it cannot know whether it may"
        async with _client_at(cluster, other, resume=old.credentials()) as new:
            stream = new.events()
            await new.send_text("are you there?")
            await _completed(stream)
            assert not await trio.to_thread.run_sync(first.is_ready), "it sends new clients elsewhere"
            wake()
            await trio.sleep(QUIET_S)
            assert old.statistics().received_events <= had + 1, "it wrote to its socket without the term"
            await new.send_text("and now?")
            await _completed(stream)
            with trio.fail_after(40), pytest.raises(ConnectionLost, match="resume"):
                async for _ in events:
                    pass  # it was told to go on elsewhere
            assert new.statistics().lost_events == 0
            replay = await _one_writer(cluster.url, new.session_id or "")
            await first.ready()
    ended = [record.event.status for record in replay.records if isinstance(record.event, e.ResponseEnded)]
    assert ended == [INCOMPLETE, names.STATUS_COMPLETED, names.STATUS_COMPLETED]
    owners = [record.event for record in replay.records if isinstance(record.event, e.OwnerChanged)]
    assert len(owners) == 2
    assert first.alive


def _client_at(cluster: Cluster, server: ServerProcess, **options: Any) -> DuplexClient:
    return DuplexClient(
        "ws://balancer/v1/realtime",
        connect=lambda url, headers: cluster.connect_to(server, url, headers),
        reconnect=None,
        **options,
    )


async def _completed(stream: Any) -> None:
    with trio.fail_after(40):
        async for event in stream:
            if event.type == names.RESPONSE_DONE and event.payload["response"]["status"] == names.STATUS_COMPLETED:
                return
    raise AssertionError("the stream ended")


async def _one_writer(url: str, session: str) -> Replay:
    async with open_store(url) as store:
        replay = await replay_session(store, session, make_projection, encode_caused)
        judge_log(replay)
        terms = [batch.term for batch in await store.read(session, limit=10**6)]
        assert terms == sorted(terms)
    return replay


@attrs.define(eq=False)
class Cable:
    """Between a server and the database. Unplugged, it holds what is sent, both ways, and says nothing."""

    url: str
    plugged: trio.Event

    def unplug(self) -> None:
        self.plugged = trio.Event()

    def plug_in(self) -> None:
        self.plugged.set()

    async def carry(self, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                await self.plugged.wait()
                await sink.send_all(data)
            await sink.send_eof()


@asynccontextmanager
async def open_cable(url: str) -> AsyncIterator[Cable]:
    """A way to the database at ``url``, whose server listens on a socket in the file system, over a port of the loopback."""
    database = sqlalchemy.make_url(url)
    folder = database.query["host"]
    assert isinstance(folder, str)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    over = database.difference_update_query(["host"]).set(host="127.0.0.1", port=port)
    cable = Cable(over.render_as_string(hide_password=False), trio.Event())
    cable.plug_in()

    async def connect(near: trio.SocketStream) -> None:
        far = await trio.open_unix_socket(f"{folder}/.s.PGSQL.{database.port or PORT}")
        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(cable.carry, near, far)
            nursery.start_soon(cable.carry, far, near)

    async with trio.open_nursery() as nursery:
        serve: Callable[..., Awaitable[None]] = trio.serve_listeners
        nursery.start_soon(serve, connect, [listener])
        yield cable
        nursery.cancel_scope.cancel()
