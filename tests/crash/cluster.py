"""Real servers in processes of their own on one store, and real clients that talk to them while they are killed.

``Cluster`` starts, kills and stops the servers, ``Talker`` is a client that asks, listens, interrupts and comes back
through a balancer which sends each connection to the next server that lives. ``judge`` compares what every client was
told with what the logs say.
"""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import trio

from adapters.bench.own_server import Launch, ServerProcess, model_flags
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
from tests.crash.forked import fork

ANSWER_TIMEOUT_S = 20.0
REFUSED_S = 0.5
"""How long a client that was refused something thinks before it speaks again."""
PERSISTENT = ReconnectPolicy(outage_ms_max=800_000, initial_ms=20, delay_ms_max=400)
QUESTION = (9_000 * np.sin(2 * np.pi * 220 * np.arange(4_800) / 24_000)).astype("<i2").tobytes()
"""200 ms of a tone: speech, to the scripted model."""

MODEL = {"unit_ms": "100", "rtf": "0.6", "long_units": "25", "first_audio_ms": "30"}
INCOMPLETE = "incomplete"
PATIENT = "[session]\ndisconnect_grace_ms = 300_000\nreplay_window_ms = 300_000\n"
"""A machine that runs many tests at once may need half a minute to start a server again, which is then killed before a client
had its turn: after the usual minute without a word that client would have to begin anew."""


@attrs.define(eq=False)
class Cluster:
    """Servers on the store at ``url``. ``chance`` decides who is killed."""

    url: str
    folder: Path
    chance: random.Random
    flags: tuple[str, ...] = ()
    launch: Launch = fork
    servers: list[ServerProcess] = attrs.field(factory=list)
    turns: int = 0
    talkers: list[Talker] = attrs.field(factory=list)

    async def start(self, count: int) -> None:
        for number in range(count):
            self.add(f"server-{number}").start()
        for server in self.servers:
            await server.ready()

    def add(self, name: str, url: str = "") -> ServerProcess:
        """One more server, not started yet, which reaches the store at ``url``."""
        patient = self.folder / "patient.toml"
        patient.write_text(PATIENT)
        usual = ("--config", str(patient), "--model", "scripted", *model_flags(MODEL), "--log-level", "warning")
        server = ServerProcess(
            self.folder,
            (*usual, "--drain-s", "1", *self.flags),
            store_url=url or self.url,
            words=self.folder / f"{name}.log",
            launch=self.launch,
        )
        self.servers.append(server)
        return server

    async def kill_and_restart(self, server: ServerProcess | None = None, pause_s: float | None = None) -> None:
        """kill -9 of a server drawn by lot; back on the same port."""
        server = server or self.chance.choice(self.servers)
        server.kill()
        await trio.sleep(self.chance.uniform(0, 0.5) if pause_s is None else pause_s)
        server.start()
        await server.ready()

    def stop(self) -> None:
        for server in self.servers:
            if server.alive:
                server.signal(signal.SIGCONT)
                server.kill()

    def balance(self) -> ServerProcess:
        """The next server, in turn."""
        self.turns += 1
        return self.servers[self.turns % len(self.servers)]

    def connected_to(self, server: ServerProcess) -> list[Talker]:
        """The talkers that have a socket open to it."""
        return [talker for talker in self.talkers if talker.server is server]

    def lost(self, server: ServerProcess) -> None:
        """It was killed: nobody is connected to it any more."""
        for talker in self.connected_to(server):
            talker.server = None

    async def connect_to(self, server: ServerProcess, url: str, headers: Mapping[str, str]) -> Transport:
        return await trio_transport.connect(url.replace("balancer", f"127.0.0.1:{server.port}"), headers)


@asynccontextmanager
async def open_cluster(
    url: str, folder: Path, *, count: int = 2, seed: int = 1, flags: tuple[str, ...] = (), launch: Launch = fork
) -> AsyncIterator[Cluster]:
    """``count`` servers that are ready; killed at the end."""
    cluster = Cluster(url, folder, random.Random(seed), flags, launch)
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
    """A client that has a conversation for as long as it may. It interrupts ``cut_share`` of the answers, each after
    ``patience_max`` chunks at most."""

    cluster: Cluster
    chance: random.Random
    cut_share: float = 0.4
    patience_max: int = 12
    told: Told = attrs.field(factory=Told)
    client: DuplexClient | None = None
    server: ServerProcess | None = None
    """Where it is connected, None while it is not."""
    spoke: list[str] = attrs.field(factory=list)
    """Event ids of its commits, each after one QUESTION."""
    typed: list[str] = attrs.field(factory=list)
    completed: int = 0
    idle_turns: int = 0
    """Turns that nobody answered: the server died over them, or another answer was still on."""

    async def talk(self, stop: trio.Event) -> None:
        """Ask and listen until ``stop``, then once more in peace."""
        async with self.connected() as client:
            while not stop.is_set():
                await self.turn(client, cut=self.chance.random() < self.cut_share)
            with trio.fail_after(3 * ANSWER_TIMEOUT_S):
                before = self.completed
                while self.completed == before:
                    await self.turn(client, cut=False)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[DuplexClient]:
        """Through the balancer, coming back after every loss; what it is told is noted."""
        config = cascade_session_config(manual_turns=True)
        url = "ws://balancer/v1/realtime"
        client = DuplexClient(url, connect=self._connect, config=config, reconnect=PERSISTENT)
        async with client, trio.open_nursery() as nursery:
            self.client = client
            await nursery.start(self._listen, client)
            yield client
            nursery.cancel_scope.cancel()

    async def _connect(self, url: str, headers: Mapping[str, str]) -> Transport:
        self.server = None
        server = self.cluster.balance()
        transport = await self.cluster.connect_to(server, url, headers)
        self.server = server
        return transport

    async def _listen(
        self, client: DuplexClient, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        events = client.events()
        task_status.started()
        async for event in events:
            assert not events.dropped, "the test's listener is too slow to judge"
            self.told.note(event)

    async def turn(self, client: DuplexClient, cut: bool) -> None:
        """Ask by voice or in writing, and listen to the answer."""
        if self.chance.random() < 0.5:
            await client.stream_pcm(QUESTION, chunk_ms=50, realtime=False)
            self.spoke.append(await client.commit(create_response=True))
        else:
            self.typed.append(await client.send_text("a long answer please"))
        with trio.move_on_after(ANSWER_TIMEOUT_S) as scope:
            try:
                async for response in client.responses():
                    await self._hear(client, response, cut)
                    break
            except DuplexProtocolError:
                self.idle_turns += 1
                await trio.sleep(REFUSED_S)
        if scope.cancelled_caught:
            self.idle_turns += 1

    async def _hear(self, client: DuplexClient, response: ResponseHandle, cut: bool) -> None:
        patience = self.chance.randint(1, self.patience_max) if cut else 10**6
        async for _chunk in response.audio():
            await client.ack_playback(response.played_ms, response_id=response.response_id)
            patience -= 1
            if not patience:
                await client.barge_in(played_ms=response.played_ms, response_id=response.response_id)
        await response.wait_done()
        self.completed += response.status == names.STATUS_COMPLETED


async def judge(url: str, talkers: list[Talker]) -> list[Replay]:
    """Everything that a client was told is in its log, once, at its number; logs fold and replay exactly; terms only
    grow; no sound is stale, doubled or missing; and so is nothing that the client said. The sessions, replayed."""
    replays = []
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
            judge_input(talker, replay)
            replays.append(replay)
    return replays


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


def judge_input(talker: Talker, replay: Replay) -> None:
    """What the client said is in the log once and in its order, whatever was sent again; or it was refused, which is said
    there once too."""
    events = [record.event for record in replay.records]
    refused = [event.event_id for event in events if isinstance(event, e.Refused)]

    def taken(said: list[str]) -> list[str]:
        return [event_id for event_id in said if event_id not in refused]

    assert [event.event_id for event in events if isinstance(event, e.Commit)] == taken(talker.spoke)
    assert [event.event_id for event in events if isinstance(event, e.ItemCreated)] == taken(talker.typed)
    chunks = [event for event in events if isinstance(event, e.Append)]
    assert len({chunk.event_id for chunk in chunks}) == len(chunks)
    if "append_audio" not in {event.command for event in events if isinstance(event, e.Refused)}:
        assert sum(chunk.size_bytes for chunk in chunks) == len(QUESTION) * len(talker.spoke)


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
