"""Real servers in processes of their own on one store, and real clients that talk to them while they are killed.

``Cluster`` starts, kills and stops the servers, ``Talker`` is a client that asks, listens, interrupts and comes back
through a balancer which sends each connection to the next server that lives. ``judge`` compares what every client was
told with what the logs say.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import trio

from adapters.client import trio_transport
from adapters.client.credentials import ReconnectPolicy
from adapters.client.errors import DuplexProtocolError
from adapters.client.frames import DuplexEvent
from adapters.client.handle import ResponseHandle
from adapters.client.session_config import cascade_session_config
from adapters.client.transport import Transport
from adapters.client.trio_client import DuplexClient
from adapters.replay.replaying import Replay, replay_session
from adapters.wire.caused import encode_caused
from adapters.wire.projections import make_projection
from adapters.wire.schema import names
from core.session import events as e
from gpu_runtime.models.scripted.identity import identify_all
from store.opening import open_store

SERVER = Path(__file__).with_name("patient_server.py")
ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 90.0
ANSWER_TIMEOUT_S = 20.0
PERSISTENT = ReconnectPolicy(attempts_max=2_000, initial_ms=20, delay_ms_max=400)
QUESTION = (9_000 * np.sin(2 * np.pi * 220 * np.arange(4_800) / 24_000)).astype("<i2").tobytes()
"""200 ms of a tone: speech, to the scripted model."""

MODEL = {"unit_ms": "100", "rtf": "0.6", "long_units": "25", "first_audio_ms": "30"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@attrs.define(eq=False)
class Process:
    """One ``duologue serve``; ``words`` is the file of its log."""

    port: int
    words: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, url: str, flags: tuple[str, ...]) -> None:
        options = [flag for key, value in MODEL.items() for flag in ("--model-option", f"{key}={value}")]
        command = [
            *(sys.executable, str(SERVER), "serve", "--port", str(self.port), "--store", url),
            *("--model", "scripted", "--log-level", "warning", "--drain-s", "1", *options, *flags),
        ]
        with self.words.open("ab") as words:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, env=environment, cwd=ROOT
            )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    async def ready(self) -> None:
        """Until it takes sessions. Raises AssertionError with its last words when it does not."""
        with trio.move_on_after(START_TIMEOUT_S):
            while self.alive:
                if await self._is_ready():
                    return
                await trio.sleep(0.05)
        raise AssertionError(f"a server did not start: {self.words.read_text()[-2_000:]}")

    async def _is_ready(self) -> bool:
        with trio.move_on_after(5):
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", self.port)
                async with stream:
                    await stream.send_all(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                    return (await stream.receive_some(64)).startswith(b"HTTP/1.1 200")
            except (OSError, trio.BrokenResourceError):
                return False
        return False


@attrs.define(eq=False)
class Cluster:
    """Servers on the store at ``url``. ``chance`` decides who is killed."""

    url: str
    folder: Path
    chance: random.Random
    flags: tuple[str, ...] = ()
    servers: list[Process] = attrs.field(factory=list)
    turns: int = 0
    talkers: list[Talker] = attrs.field(factory=list)

    async def start(self, count: int) -> None:
        for number in range(count):
            server = Process(free_port(), self.folder / f"server-{number}.log")
            self.servers.append(server)
            server.start(self.url, self.flags)
        for server in self.servers:
            await server.ready()

    async def kill_and_restart(self, server: Process | None = None) -> Process:
        """kill -9 of a server drawn by lot; back on the same port."""
        server = server or self.chance.choice(self.servers)
        server.kill()
        await trio.sleep(self.chance.uniform(0, 0.5))
        server.start(self.url, self.flags)
        await server.ready()
        return server

    def stop(self) -> None:
        for server in self.servers:
            if server.alive:
                server.signal(signal.SIGCONT)
                server.kill()

    async def connect(self, url: str, headers: Mapping[str, str]) -> Transport:
        """The balancer: the next server, in turn."""
        self.turns += 1
        server = self.servers[self.turns % len(self.servers)]
        return await self.connect_to(server, url, headers)

    async def connect_to(self, server: Process, url: str, headers: Mapping[str, str]) -> Transport:
        return await trio_transport.connect(url.replace("balancer", f"127.0.0.1:{server.port}"), headers)


@asynccontextmanager
async def open_cluster(
    url: str, folder: Path, *, count: int = 2, seed: int = 1, flags: tuple[str, ...] = ()
) -> AsyncIterator[Cluster]:
    """``count`` servers that are ready; killed at the end."""
    cluster = Cluster(url, folder, random.Random(seed), flags)
    try:
        await cluster.start(count)
        yield cluster
    finally:
        cluster.stop()


@attrs.define(eq=False)
class Told:
    """What one client was told, for the judge."""

    numbers: dict[int, str] = attrs.field(factory=dict)
    """Number -> type, of every numbered event that came."""
    audio: dict[str, list[bytes]] = attrs.field(factory=dict)
    after_end: list[str] = attrs.field(factory=list)
    """Responses whose audio came after their cancelled end."""
    cancelled: set[str] = attrs.field(factory=set)
    statuses: list[str] = attrs.field(factory=list)
    at: float = 0.0
    """When the last event came, on trio's clock."""

    def note(self, event: DuplexEvent) -> None:
        self.at = trio.current_time()
        number = event.payload.get("server_event_seq")
        if isinstance(number, int):
            assert number not in self.numbers, f"number {number} was handed on twice"
            self.numbers[number] = event.type
        response = event.payload.get("response_id")
        if event.audio and isinstance(response, str):
            self.audio.setdefault(response, []).append(event.audio)
            if response in self.cancelled:
                self.after_end.append(response)
        if event.type == names.RESPONSE_DONE:
            done = event.payload["response"]
            self.statuses.append(done["status"])
            if done["status"] == names.STATUS_CANCELLED:
                self.cancelled.add(done["id"])


@attrs.define(eq=False)
class Talker:
    """A client that has a conversation for as long as it may."""

    cluster: Cluster
    chance: random.Random
    told: Told = attrs.field(factory=Told)
    client: DuplexClient | None = None
    completed: int = 0
    idle_turns: int = 0
    """Turns that nobody answered: the server died over them, or another answer was still on."""

    async def talk(self, stop: trio.Event) -> None:
        """Ask and listen until ``stop``, then once more in peace."""
        config = cascade_session_config(manual_turns=True)
        url = "ws://balancer/v1/realtime"
        client = DuplexClient(url, connect=self.cluster.connect, config=config, reconnect=PERSISTENT)
        async with client, trio.open_nursery() as nursery:
            self.client = client
            await nursery.start(self._listen, client)
            while not stop.is_set():
                await self._turn(client, cut=self.chance.random() < 0.4)
            with trio.fail_after(3 * ANSWER_TIMEOUT_S):
                before = self.completed
                while self.completed == before:
                    await self._turn(client, cut=False)
            nursery.cancel_scope.cancel()

    async def _listen(
        self, client: DuplexClient, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        events = client.events()
        task_status.started()
        async for event in events:
            assert not events.dropped, "the test's listener is too slow to judge"
            self.told.note(event)

    async def _turn(self, client: DuplexClient, cut: bool) -> None:
        if self.chance.random() < 0.5:
            await client.stream_pcm(QUESTION, chunk_ms=50, realtime=False)
            await client.commit(create_response=True)
        else:
            await client.send_text("a long answer please")
        with trio.move_on_after(ANSWER_TIMEOUT_S) as scope:
            try:
                async for response in client.responses():
                    await self._hear(client, response, cut)
                    break
            except DuplexProtocolError:
                self.idle_turns += 1
        if scope.cancelled_caught:
            self.idle_turns += 1

    async def _hear(self, client: DuplexClient, response: ResponseHandle, cut: bool) -> None:
        patience = self.chance.randint(1, 12) if cut else 10**6
        async for _chunk in response.audio():
            await client.ack_playback(response.played_ms, response_id=response.response_id)
            patience -= 1
            if not patience:
                await client.barge_in(played_ms=response.played_ms, response_id=response.response_id)
        await response.wait_done()
        self.completed += response.status == names.STATUS_COMPLETED


async def judge(url: str, talkers: list[Talker]) -> None:
    """Everything that a client was told is in its log, once, at its number; logs fold and replay exactly; terms only
    grow; no sound is stale, doubled or missing."""
    async with open_store(url) as store:
        for talker in talkers:
            assert talker.client is not None
            assert talker.client.session_id is not None
            replay = await replay_session(store, talker.client.session_id, make_projection, encode_caused)
            judge_log(replay)
            batches = await store.read(talker.client.session_id, limit=10**6)
            terms = [batch.term for batch in batches]
            assert terms == sorted(terms), "a lower term wrote after a higher one"
            judge_stream(talker, replay)


def judge_log(replay: Replay) -> None:
    assert replay.mismatch is None, replay.mismatch
    started = [record.event.response_id for record in replay.records if isinstance(record.event, e.ResponseStarted)]
    ended = [record.event.response_id for record in replay.records if isinstance(record.event, e.ResponseEnded)]
    assert len(ended) == len(set(ended)), "an answer ended twice"
    assert set(ended) <= set(started)
    assert len(started) - len(ended) <= 1, "an answer never ended"


def judge_stream(talker: Talker, replay: Replay) -> None:
    told, client = talker.told, talker.client
    assert client is not None
    frames = {frame.number: frame for frame in replay.frames}
    for number, kind in told.numbers.items():
        assert number in frames, f"the client was told {number} ({kind}), and the log does not have it"
        assert frames[number].payload["type"] == kind
    statistics = client.statistics()
    assert statistics.lost_events == 0
    assert statistics.stale_audio_deltas == 0
    assert told.after_end == []
    for response, chunks in told.audio.items():
        units = [(identity.epoch, identity.response, identity.unit) for identity in identify_all(b"".join(chunks))]
        assert len({unit[:2] for unit in units}) == 1, f"{response} has sound of several answers: {units}"
        assert [unit[2] for unit in units] == list(range(units[0][2], units[0][2] + len(units))), f"{response}: {units}"


def facts(talker: Talker) -> dict[str, Any]:
    """For a failing test's output and the full form's table."""
    assert talker.client is not None
    statistics = talker.client.statistics()
    return {
        "session": talker.client.session_id,
        "events": len(talker.told.numbers),
        "answers": len(talker.told.statuses),
        "completed": talker.completed,
        "reconnects": statistics.reconnects,
        "duplicates": statistics.duplicate_events,
        "skipped": statistics.skipped_events,
        "idle turns": talker.idle_turns,
    }
