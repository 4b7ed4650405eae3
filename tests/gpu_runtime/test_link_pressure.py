"""A slow reader at either end of a worker's link, under a clock of our own: over a stream of bytes as a socket is, and over
calls as Ray makes them. Nobody is lost who is alive, nobody is kept waiting by another's flood, and who has stopped for good
is noticed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from adapters.wire.fields import FRAME_BYTES_MAX
from core.ports.runtime import (
    AbortLane,
    Capabilities,
    CommitTurn,
    Feed,
    Heard,
    ModelStatistics,
    Produced,
    RuntimeBusy,
    RuntimeLost,
    RuntimeReady,
)
from gpu_runtime.cluster.line import LineLink
from gpu_runtime.host import WorkerOptions, WorkerRuntime
from gpu_runtime.host.link import Link
from gpu_runtime.host.runtime import open_workers
from gpu_runtime.plugin import Progress
from gpu_runtime.protocol import (
    FROM_WORKER_CODEC,
    TO_WORKER_CODEC,
    Figures,
    FrameBuffer,
    FromWorker,
    Load,
    Ping,
    Pong,
    ToWorker,
)
from tests.gpu_runtime.stories import Caller, flood

OPTIONS = WorkerOptions(restart_delays_s=(0.1,))
PIPE_BYTES = 128 * 1024
TURN_S = 0.1
"""How long one read takes at an end that is behind."""


class Pipe:
    """One direction of a socket: so many bytes on the way, then the writer waits."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._moved = trio.Event()
        self.ended = False

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    async def write(self, data: bytes) -> None:
        while data:
            while len(self._data) >= PIPE_BYTES and not self.ended:
                await self._moved.wait()
            if self.ended:
                raise trio.BrokenResourceError
            room = PIPE_BYTES - len(self._data)
            self._data += data[:room]
            data = data[room:]
            self._move()

    async def read(self, max_bytes: int) -> bytes:
        while not self._data and not self.ended:
            await self._moved.wait()
        taken = bytes(self._data[:max_bytes])
        del self._data[:max_bytes]
        self._move()
        return taken

    def end(self) -> None:
        self.ended = True
        self._move()


class Worker:
    """The other end, without a model: a test says how it reads and what it writes. It answers pings as workers do, before
    all else that waits; ``behind``: after it."""

    def __init__(self, read_s: float = 0.0, behind: bool = False) -> None:
        self.inbound, self.outbound = Pipe(), Pipe()
        self.read_s = read_s
        self.behind = behind
        self.stopped = False
        self.taken: list[ToWorker] = []
        self.dead = trio.Event()
        self._goes_on = trio.Event()
        self._said: list[bytes] = []
        self._pongs: list[bytes] = []
        self._filled = trio.Event()

    def stop(self) -> None:
        self.stopped, self._goes_on = True, trio.Event()

    def go_on(self) -> None:
        self.stopped = False
        self._goes_on.set()

    def die(self) -> None:
        self.dead.set()
        self.inbound.end()
        self.outbound.end()

    def say(self, message: FromWorker) -> None:
        about_itself = isinstance(message, Pong | Figures) and not self.behind
        (self._pongs if about_itself else self._said).append(FROM_WORKER_CODEC.encode(message))
        self._filled.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._read)
            await self.dead.wait()
            nursery.cancel_scope.cancel()

    async def _write(self) -> None:
        while True:
            await self._filled.wait()
            with suppress(trio.BrokenResourceError):  # it is dead
                while self._pongs or self._said:
                    await self.outbound.write((self._pongs or self._said).pop(0))
            self._filled = trio.Event()

    async def _read(self) -> None:
        frames = FrameBuffer()
        while data := await self.inbound.read(64 * 1024):
            while self.stopped:
                await self._goes_on.wait()
            await trio.sleep(self.read_s)
            for payload in frames.feed(data):
                self._take(TO_WORKER_CODEC.decode(payload))
        self.die()

    def _take(self, message: ToWorker) -> None:
        match message:
            case Load():
                self.say(RuntimeReady(Capabilities(model="none", unit_ms=20)))
            case Ping(number=number):
                self.say(Pong(number))
                self.say(Figures(ModelStatistics()))
            case CommitTurn():
                self.say(Heard(message.session, message.item_id, ""))
        self.taken.append(message)


@attrs.define
class Socket:
    """gpu_runtime.host.link.ByteStream over pipes. ``turn_s``: one read in a turn of the host's event loop."""

    worker: Worker
    turn_s: float

    async def send_all(self, data: bytes) -> None:
        await self.worker.inbound.write(data)

    async def receive_some(self, max_bytes: int) -> bytes:
        await trio.sleep(self.turn_s)
        return await self.worker.outbound.read(max_bytes)

    async def send_eof(self) -> None:
        self.worker.inbound.end()


@attrs.define
class Direct:
    """gpu_runtime.host.link.Link of a process."""

    worker: Worker
    stream: Socket
    pid: int = 1
    last_words: str = ""

    async def log_output(self) -> None:
        await self.worker.dead.wait()

    async def wait(self) -> str:
        await self.worker.dead.wait()
        return "killed"

    def kill(self) -> None:
        self.worker.die()

    async def close(self) -> None:
        self.worker.die()


@attrs.define
class Calls:
    """gpu_runtime.cluster.line.Calls of an actor."""

    worker: Worker
    turn_s: float

    async def push(self, data: bytes) -> None:
        await self.worker.inbound.write(data)

    async def pull(self) -> bytes:
        await trio.sleep(self.turn_s)
        return await self.worker.outbound.read(64 * 1024)

    async def let_go(self) -> None:
        self.worker.inbound.end()

    async def wait(self) -> int:
        await self.worker.dead.wait()
        return 0

    def kill(self) -> None:
        self.worker.die()


def socket_link(worker: Worker, turn_s: float) -> Link:
    return Direct(worker, Socket(worker, turn_s))


def actor_link(worker: Worker, turn_s: float) -> Link:
    return LineLink(Calls(worker, turn_s), 1)


MakeLink = Callable[[Worker, float], Link]


@pytest.fixture(params=[socket_link, actor_link], ids=["socket", "actor"])
def link(request: pytest.FixtureRequest) -> MakeLink:
    make: MakeLink = request.param
    return make


@asynccontextmanager
async def hosted(
    link: MakeLink, *workers: Worker, turn_s: float = 0.0, options: WorkerOptions = OPTIONS
) -> AsyncIterator[WorkerRuntime]:
    """A host of these workers' lives, one after the other."""
    async with trio.open_nursery() as nursery:
        lives = iter(workers)

        async def start(_progress: Progress) -> Link:
            worker = next(lives)
            nursery.start_soon(worker.run)
            return link(worker, turn_s)

        async with open_workers("none", [start], options=options) as runtime:
            yield runtime
        for worker in workers:
            worker.die()


def unit(number: int, size: int = 9_600) -> Produced:
    return Produced("s", 1, "r1", number, "speak", "", bytes(size), 24_000, ())


async def test_much_that_a_slow_host_has_to_read_is_no_silence_of_the_worker(link: MakeLink) -> None:
    """Ten times as much as can be read while a silent worker is waited for, and its answers to pings behind all of it."""
    worker = Worker(behind=True)
    async with hosted(link, worker, turn_s=TURN_S) as runtime:
        caller = Caller(runtime)
        began = trio.current_time()
        units = 4_000
        for number in range(units):
            worker.say(unit(number))
        await caller.wait_for(Produced, units, within_s=100)
        assert trio.current_time() - began > 1.5 * OPTIONS.stall_timeout_s
        assert [one.unit for one in caller.of(Produced)] == list(range(units))
        await trio.sleep(OPTIONS.stall_timeout_s * 2)
        assert not caller.of(RuntimeLost)


async def test_a_worker_that_talks_on_and_listens_no_more_is_noticed(link: MakeLink) -> None:
    deaf, next_one = Worker(), Worker()
    async with hosted(link, deaf, next_one, turn_s=TURN_S) as runtime:
        caller = Caller(runtime)
        deaf.stop()
        stopped = trio.current_time()

        async def talk() -> None:
            for number in count():
                deaf.say(unit(number, 64 * 1024))
                await trio.sleep(TURN_S / 2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)
            lost = await caller.wait_for(RuntimeLost, within_s=200)
            nursery.cancel_scope.cancel()
        assert lost.reason == "stalled: it talks, and has taken nothing for 60 s"
        assert OPTIONS.deaf_timeout_s - 2 < trio.current_time() - stopped < OPTIONS.deaf_timeout_s + 2
        await caller.wait_for(RuntimeReady)
        await caller.barrier()


async def test_a_worker_that_has_stopped_is_noticed_whatever_waits_for_it(link: MakeLink) -> None:
    """Its end of the link is full, so not even a ping gets out."""
    stopped, next_one = Worker(), Worker()
    async with hosted(link, stopped, next_one) as runtime:
        caller = Caller(runtime)
        stopped.stop()
        began = trio.current_time()
        flood(caller, bytes(100_000))
        lost = await caller.wait_for(RuntimeLost, within_s=60)
        assert lost.reason == "stalled: no sign of life for 15 s"
        assert OPTIONS.stall_timeout_s - 2 < trio.current_time() - began < OPTIONS.stall_timeout_s + 2
        assert runtime.statistics().queue_bytes == 0
        await caller.wait_for(RuntimeReady)
        await caller.barrier()


async def test_a_worker_that_goes_on_in_time_has_lost_nothing_that_it_was_sent(link: MakeLink) -> None:
    worker = Worker()
    async with hosted(link, worker) as runtime:
        caller = Caller(runtime)
        worker.stop()
        sent = 0
        for _ in range(round(OPTIONS.stall_timeout_s) - 3):
            sent += 50
            caller.say(bytes(50 * 960))
            await trio.sleep(1)
        worker.go_on()
        await caller.barrier()
        fed = [message for message in worker.taken if isinstance(message, Feed)]
        assert [message.start_ms for message in fed] == [20 * number for number in range(sent)]
        assert not caller.of(RuntimeLost)


async def test_a_slow_worker_refuses_who_floods_and_hears_everybody_else(link: MakeLink) -> None:
    """Twenty floods together fill no more than their shares; the quiet one's every word arrives, and an abort of a flood."""
    worker = Worker(read_s=0.02)
    async with hosted(link, worker) as runtime:
        quiet = Caller(runtime, "quiet")
        floods = [Caller(runtime, f"flood{number}") for number in range(20)]
        refused = dict.fromkeys((caller.session for caller in floods), 0)

        async def pour(caller: Caller) -> None:
            while True:
                flood(caller, bytes(100_000))
                refused[caller.session] += 1
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            for caller in floods:
                nursery.start_soon(pour, caller)
            await trio.sleep(1)
            for _ in range(100):
                quiet.say(bytes(960))
                held = runtime.statistics()
                assert held.queue_bytes <= OPTIONS.queue_bytes_max
                assert held.queue_items <= OPTIONS.queue_items_max
                await trio.sleep(0.02)
            floods[0].cut_off(1)
            nursery.cancel_scope.cancel()
        await quiet.barrier()
        assert [m.start_ms for m in worker.taken if isinstance(m, Feed) and m.session == "quiet"] == [
            20 * number for number in range(100)
        ]
        assert AbortLane("flood0", 1) in worker.taken
        assert all(refused.values())
        assert not quiet.of(RuntimeLost)


async def test_one_session_has_its_share_and_no_more_and_gets_it_back(link: MakeLink) -> None:
    worker = Worker()
    async with hosted(link, worker) as runtime:
        caller, other = Caller(runtime, "first"), Caller(runtime, "other")
        worker.stop()
        await wait_all_tasks_blocked()
        taken = flood(caller, bytes(1_000))
        assert taken == OPTIONS.session_items_max
        with pytest.raises(RuntimeBusy, match="a session has 1024 messages"):
            caller.say(bytes(960))
        assert flood(other, bytes(1_000_000)) == OPTIONS.session_bytes_max // 1_000_000
        worker.go_on()
        await caller.barrier()
        await other.barrier()
        assert runtime.statistics().queue_bytes == 0
        assert flood(caller, bytes(1_000)) == taken


async def test_the_longest_message_of_a_client_has_room(link: MakeLink) -> None:
    worker = Worker()
    async with hosted(link, worker) as runtime:
        caller = Caller(runtime)
        audio = bytes(FRAME_BYTES_MAX * 3 // 4)
        runtime.send(Feed("s", 1, 0, len(audio) // 48, audio))
        await caller.barrier()
        assert [len(message.audio) for message in worker.taken if isinstance(message, Feed)] == [len(audio)]
