"""The wire under load: barge-in while many sessions talk, and how many sessions a core carries in real time.

The load is a process of its own and as plain as it can be: raw messages over trio-websocket, made once; an incoming one is
looked at for a few bytes and parsed only where it must be. What it measures is the server, and its own share is shown.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import pybase64
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from adapters.bench.environment import descendants
from adapters.wire.schema import names

RATE = 16_000
EVERY_S = 0.2
"""An append each, and a delta of the scripted model each: five of both a second."""
WAIT_S = 30.0
LAG_EVERY_S = 0.02
CHUNK = pybase64.b64encode_as_string(bytes(int(RATE * EVERY_S) * 2))
APPEND = json.dumps({"type": names.AUDIO_APPEND, "audio": CHUNK})
BARGE_IN = json.dumps({"type": names.BARGE_IN})
SESSION = {"turn_detection": None}
_DELTA = f'"type":"{names.AUDIO_DELTA}"'


@attrs.define(eq=False)
class Talker:
    """One session's connection. ``offsets_s``: when each delta came, less the even pace of the answer; ``best_s``: the least
    of them, those that are forgotten included."""

    socket: WebSocketConnection
    deltas: int = 0
    appends: int = 0
    offsets_s: list[float] = attrs.field(factory=list)
    best_s: float = math.inf
    asked_at: float = 0.0
    cut: set[str] = attrs.field(factory=set)
    stale: int = 0
    _paced: int = 0

    async def begin(self) -> None:
        """Configure the session and wait for it."""
        await self.socket.send_message(json.dumps({"type": names.SESSION_UPDATE, "session": SESSION}))
        await self._until(names.SESSION_UPDATED)

    async def ask(self, units: int) -> None:
        """Ask for an answer of so many units."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"units={units}"}]}
        await self.socket.send_message(json.dumps({"type": names.ITEM_CREATE, "item": item}))
        self.asked_at, self._paced, self.best_s = trio.current_time(), 0, math.inf
        await self.socket.send_message(json.dumps({"type": names.RESPONSE_CREATE}))

    async def _until(self, kind: str) -> dict[str, object]:
        needle = f'"type":"{kind}"'
        with trio.fail_after(WAIT_S):
            while True:
                message = await self.receive()
                if needle in message:
                    payload: dict[str, object] = json.loads(message)
                    if payload["type"] == kind:
                        return payload

    async def receive(self) -> str:
        """The next message; deltas are counted and timed."""
        message = await self.socket.get_message()
        assert isinstance(message, str)
        if _DELTA in message[:100]:
            self._note_delta(message)
        return message

    def _note_delta(self, message: str) -> None:
        offset_s = trio.current_time() - self._paced * EVERY_S
        self.deltas += 1
        self._paced += 1
        self.offsets_s.append(offset_s)
        self.best_s = min(self.best_s, offset_s)
        if self.cut and json.loads(message)["response_id"] in self.cut:
            self.stale += 1

    async def read(self) -> None:
        """Take what comes, for ever."""
        with suppress(ConnectionClosed):
            while True:
                await self.receive()

    async def talk(self, offset_s: float) -> None:
        """Append at an even pace, for ever."""
        due = trio.current_time() + offset_s
        with suppress(ConnectionClosed):
            while True:
                await trio.sleep_until(due)
                await self.socket.send_message(APPEND)
                self.appends += 1
                due += EVERY_S

    async def barge_in(self) -> float:
        """Cut the answer after its second delta: ms until its cancelled end is here."""
        before = self.deltas
        with trio.fail_after(WAIT_S):
            while self.deltas < before + 2:
                await self.receive()
        asked = trio.current_time()
        await self.socket.send_message(BARGE_IN)
        done = await self._until(names.RESPONSE_DONE)
        latency_ms = (trio.current_time() - asked) * 1_000
        response = done["response"]
        assert isinstance(response, dict)
        assert response["status"] == "cancelled", response["status"]
        self.cut.add(response["id"])
        return latency_ms


@asynccontextmanager
async def talkers(url: str, count: int) -> AsyncIterator[list[Talker]]:
    """So many sessions, open and configured."""
    async with trio.open_nursery() as nursery:
        opened: list[Talker] = []
        done = trio.Event()

        async def hold() -> None:
            with suppress(ConnectionClosed):
                async with open_websocket_url(f"{url}?duplex=1&autostart=0", max_message_size=2**24) as socket:
                    talker = Talker(socket)
                    await talker.begin()
                    opened.append(talker)
                    await done.wait()

        for number in range(count):
            nursery.start_soon(hold)
            if number % 16 == 15:
                await trio.sleep(0.2)
        with trio.fail_after(WAIT_S + count / 10):
            while len(opened) < count:
                await trio.sleep(0.02)
        yield opened
        done.set()
        with trio.move_on_after(10):
            while nursery.child_tasks:
                await trio.sleep(0.02)
        nursery.cancel_scope.cancel()


@attrs.frozen
class BargeIns:
    """``latencies_ms`` of cuts while ``sessions`` talk; ``stale``: audio of a cut answer that came after its end."""

    sessions: int
    latencies_ms: list[float]
    stale: int


async def barge_ins(url: str, sessions: int, rounds: int) -> BargeIns:
    """One session is cut again and again; the others hear long answers and send sound meanwhile."""
    latencies = []
    async with talkers(url, sessions) as open_sessions, trio.open_nursery() as nursery:
        probe, others = open_sessions[0], open_sessions[1:]
        await _start_traffic(nursery, others, units=rounds * 10 + 600)
        for _ in range(rounds):
            await probe.ask(units=200)
            latencies.append(await probe.barge_in())
        with trio.move_on_after(0.5):  # what would be stale now
            while True:
                await probe.receive()
        nursery.cancel_scope.cancel()
    return BargeIns(sessions, latencies, probe.stale)


@attrs.frozen
class Load:
    """Real-time traffic of ``sessions`` for a while.

    ``lateness_ms``: how long each delta took from its due time at the model. A session's model keeps an even pace; the pace
    is taken from the session's own quickest delta, and that one is given the time of the quickest answer of all sessions,
    from its question on. So it is an upper bound.

    ``server_cores``: CPU seconds a second of the server's main process; ``worker_cores`` and ``load_cores`` those of the
    model's worker and of this load. ``starved``: seconds a second in which the server's threads could have run and others
    had the processor: with much of it, the machine was not the server's. ``load_lag_ms``: how late this load itself woke.
    """

    sessions: int
    lateness_ms: list[float]
    server_cores: float
    worker_cores: float
    load_cores: float
    starved: float
    load_lag_ms: list[float]
    deltas_a_second: float
    appends_a_second: float


async def real_time(url: str, server: int, sessions: int, seconds: float) -> Load:
    """Every session sends five appends and hears five deltas a second."""
    async with talkers(url, sessions) as open_sessions, trio.open_nursery() as nursery:
        await _start_traffic(nursery, open_sessions, units=round(seconds / EVERY_S) + 50)
        await trio.sleep(2)
        for talker in open_sessions:
            talker.deltas = talker.appends = 0
            talker.offsets_s.clear()
        family, lags = descendants(server), list[float]()
        nursery.start_soon(_note_lag, lags)
        before, starved, began = (
            [_cpu_s(pid) for pid in (*family, os.getpid())],
            _starved_s(server),
            trio.current_time(),
        )
        await trio.sleep(seconds)
        took = trio.current_time() - began
        used = [(now - then) / took for now, then in zip(map(_cpu_s, (*family, os.getpid())), before, strict=True)]
        starved = (_starved_s(server) - starved) / took
        lateness = _lateness_ms(open_sessions)
        deltas, appends = (sum(getattr(t, name) for t in open_sessions) for name in ("deltas", "appends"))
        nursery.cancel_scope.cancel()
    return Load(sessions, lateness, used[0], sum(used[1:-1]), used[-1], starved, lags, deltas / took, appends / took)


def _lateness_ms(talkers: list[Talker]) -> list[float]:
    quickest_s = min(talker.best_s - talker.asked_at for talker in talkers)
    return [(offset - talker.best_s + quickest_s) * 1_000 for talker in talkers for offset in talker.offsets_s]


async def _note_lag(lags: list[float]) -> None:
    while True:
        due = trio.current_time() + LAG_EVERY_S
        await trio.sleep_until(due)
        lags.append((trio.current_time() - due) * 1_000)


async def _start_traffic(nursery: trio.Nursery, open_sessions: list[Talker], units: int) -> None:
    for number, talker in enumerate(open_sessions):
        await talker.ask(units)
        nursery.start_soon(talker.read)
        nursery.start_soon(talker.talk, number * EVERY_S / len(open_sessions))
        await trio.sleep(EVERY_S / len(open_sessions))


def _cpu_s(pid: int) -> float:
    """User and system time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _starved_s(pid: int) -> float:
    """How long a process's threads have waited for a processor so far, in seconds."""
    waits = [task.read_text().split()[1] for task in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, waits)) / 1e9
