"""A server in the middle of many conversations: it is told to stop, its worker is killed, its disk fills up, its port is
besieged. Real processes, real sockets, the project's own client."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from adapters.bench.environment import descendants
from adapters.bench.own_server import ServerProcess, model_flags
from adapters.wire.schema import names
from core.session import events as e
from tests.crash.cluster import Talker, facts, judge, open_cluster
from tests.crash.test_kills import FULL, SEED, talk_while
from tests.store.backends import in_real_time_for

pytestmark = pytest.mark.crash

CROWD = 64
ROOM_FOR_ALL = ("--max-sessions", "128", "--drain-s", "100")
CALM = model_flags({"unit_ms": "200", "rtf": "0.5", "long_units": "15"})
"""Answers of three seconds."""

WORKER_KILLS = 15 if FULL else 5
CUTS_PER_KILL = 4
OUTAGE_S = 12.0
BESIEGERS = 200
GONE_WITHIN_S = 90.0
"""Ten seconds for a request's head or a first message, and then what closing a connection may take."""


def sqlite(folder: Path) -> str:
    return f"sqlite:///{folder}/log.sqlite3"


@pytest.mark.limit(wall_s=400)
@in_real_time_for(380)
async def test_sigterm_lets_the_answers_of_64_sessions_finish(tmp_path: Path) -> None:
    async with open_cluster(sqlite(tmp_path), tmp_path, count=1, flags=(*ROOM_FOR_ALL, *CALM)) as cluster:
        talkers = [Talker(cluster, random.Random(SEED + number)) for number in range(CROWD)]
        restarted = trio.Event()

        async def live(talker: Talker) -> None:
            async with talker.connected() as client:
                await talker.turn(client, cut=False)
                await restarted.wait()
                await talker.turn(client, cut=False)

        async with trio.open_nursery() as nursery:
            for talker in talkers:
                nursery.start_soon(live, talker)
            while not all(talker.told.audio for talker in talkers):
                await trio.sleep(0.02)
            (server,) = cluster.servers
            server.signal(signal.SIGTERM)
            assert server.process is not None
            assert await trio.to_thread.run_sync(server.process.wait, 150) == 0
            server.start()
            await server.ready()
            restarted.set()
        assert [talker.told.statuses for talker in talkers] == [["completed", "completed"]] * CROWD
        assert all(talker.client and talker.client.statistics().reconnects for talker in talkers)
        await judge(cluster.url, talkers)


@pytest.mark.limit(wall_s=600)
@in_real_time_for(580)
async def test_the_worker_is_killed_in_a_storm_of_barge_ins(tmp_path: Path) -> None:
    async with open_cluster(sqlite(tmp_path), tmp_path, count=1) as cluster:

        async def harm() -> None:
            for _ in range(WORKER_KILLS):
                cuts = cuts_so_far(cluster.talkers)
                while cuts_so_far(cluster.talkers) < cuts + CUTS_PER_KILL:
                    await trio.sleep(0.02)
                await trio.sleep(cluster.chance.uniform(0, 0.5))
                while not (workers := workers_of(cluster.servers[0])):
                    await trio.sleep(0.02)
                os.kill(workers[0], signal.SIGKILL)

        talkers = await talk_while(cluster, harm, count=8, cut_share=0.9, patience_max=3)
        replays = await judge(cluster.url, talkers)
        losses = [
            record.event
            for replay in replays
            for record in replay.records
            if isinstance(record.event, e.EpochBump) and record.event.reason == "runtime_lost"
        ]
        assert len(losses) >= WORKER_KILLS, "the kills hit no answers"
        assert sum(talker.client.statistics().reconnects for talker in talkers if talker.client) == 0
        assert cluster.servers[0].alive


def cuts_so_far(talkers: list[Talker]) -> int:
    """Answers of which a client was told that they were cut."""
    return sum(talker.told.statuses.count(names.STATUS_CANCELLED) for talker in talkers)


def workers_of(server: ServerProcess) -> list[int]:
    """The worker processes of a server, by their command line."""
    found = []
    for pid in descendants(server.pid):
        with contextlib.suppress(OSError):
            if b"gpu_runtime.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.mark.limit(wall_s=300)
@in_real_time_for(280)
async def test_the_disk_is_full_for_a_while(tmp_path: Path) -> None:
    """The kernel lets the server's files grow no more. Nothing that was not written is acknowledged, ``/readyz`` sends new
    clients elsewhere, and once there is room everything goes on."""
    async with open_cluster(sqlite(tmp_path), tmp_path, count=1) as cluster:
        (server,) = cluster.servers

        async def harm() -> None:
            await trio.sleep(1)
            limit_file_sizes(server, Path(f"{tmp_path}/log.sqlite3-wal").stat().st_size)
            await until(lambda: not server.is_ready(), 60)
            limit_file_sizes(server, resource.RLIM_INFINITY)
            await until(server.is_ready, 60)

        talkers = await talk_while(cluster, harm)
        assert sum(talker.client.statistics().reconnects for talker in talkers if talker.client) > 0
        assert "lost its log" in server.last_words


def limit_file_sizes(server: ServerProcess, size_bytes: int) -> None:
    """Writes beyond ``size_bytes`` of any file fail from now on."""
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size_bytes, hard))


async def until(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait for a condition that blocks for a while itself."""
    with trio.fail_after(limit_s):
        while not await trio.to_thread.run_sync(condition):
            await trio.sleep(0.05)


@pytest.mark.limit(wall_s=300)
@in_real_time_for(280)
async def test_connections_that_drip_hold_nobody_up_and_are_let_go(tmp_path: Path) -> None:
    """Heads that never end, and WebSockets whose first message never does."""
    async with open_cluster(sqlite(tmp_path), tmp_path, count=1) as cluster:
        (server,) = cluster.servers
        ended: list[float] = []

        async def besiege(opening: bytes, drop: bytes) -> None:
            stream = await trio.open_tcp_stream("127.0.0.1", server.port)
            async with stream, trio.open_nursery() as nursery:
                began = trio.current_time()
                await stream.send_all(opening)

                async def drip() -> None:
                    with contextlib.suppress(trio.BrokenResourceError):
                        while True:
                            await trio.sleep(1)
                            await stream.send_all(drop)

                nursery.start_soon(drip)
                with contextlib.suppress(trio.BrokenResourceError):
                    while await stream.receive_some(65_536):
                        pass
                ended.append(trio.current_time() - began)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for number in range(BESIEGERS):
                nursery.start_soon(besiege, *(HALF_A_HEAD if number % 2 else HALF_A_MESSAGE))
            talker = Talker(cluster, random.Random(SEED))
            async with talker.connected() as client:
                for _ in range(3):
                    await talker.turn(client, cut=False)
            assert talker.told.statuses == ["completed"] * 3
            with trio.fail_after(GONE_WITHIN_S + 60):
                while len(ended) < BESIEGERS:
                    await trio.sleep(0.1)
        print(facts(talker), f"the last was gone after {max(ended):.0f} s")
        assert max(ended) < GONE_WITHIN_S
        await judge(cluster.url, [talker])


HALF_A_HEAD = (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"X: y\r\n")
HALF_A_MESSAGE = (
    b"GET /v1/duplex HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    b"\x81\xfe\x10\x00\x00\x00\x00\x00",  # a masked text frame of 4096 bytes
    b"x",
)
