"""The wire under load: barge-in while many sessions talk, and how many sessions a core carries in real time.

The sessions that only load the server are a process of their own (adapters.bench.traffic); the one that is cut is here, so
that nothing of ours stands between its cut and the answer to it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.request import urlopen

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from adapters.bench.environment import descendants
from adapters.bench.own_server import ServerProcess
from adapters.bench.traffic import EVERY_MS, SESSION, Report
from adapters.wire.schema import names

CUT_WAIT_S = 30.0
ANSWER_BYTES = 64 * 1024
BARGE_IN = json.dumps({"type": names.BARGE_IN})
QUERY = "duplex=1&autostart=0"
UNITS = 9_999
"""Answers of half an hour: they outlast every measurement."""
SETTLE_S = 2.0
TAKEN_MIN = 0.95
"""A server that takes less of what it is sent falls behind, however quickly it answers."""
_DELTA = f'{{"type":"{names.AUDIO_DELTA}"'


class TooSlow(Exception):
    """The server did not do it in time; the text says what."""


# -- the session that is cut ------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Probe:
    """One session's connection. ``stale``: audio of a cut answer that came after its end."""

    socket: WebSocketConnection
    deltas: int = 0
    cut: set[str] = attrs.field(factory=set)
    stale: int = 0

    async def begin(self) -> None:
        """Configure the session and wait for it."""
        await self.socket.send_message(json.dumps({"type": names.SESSION_UPDATE, "session": SESSION}))
        await self._until(names.SESSION_UPDATED)

    async def ask(self, units: int) -> None:
        """Ask for an answer of so many units."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"units={units}"}]}
        await self.socket.send_message(json.dumps({"type": names.ITEM_CREATE, "item": item}))
        await self.socket.send_message(json.dumps({"type": names.RESPONSE_CREATE}))

    async def barge_in(self) -> float:
        """Cut the answer after its second delta: ms until its cancelled end is here."""
        before = self.deltas
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

    async def _until(self, kind: str) -> dict[str, object]:
        begin = f'{{"type":"{kind}"'
        while True:
            message = await self.receive()
            if message.startswith(begin):
                payload: dict[str, object] = json.loads(message)
                return payload

    async def receive(self) -> str:
        """The next message; deltas are counted."""
        message = await self.socket.get_message()
        assert isinstance(message, str)
        if message.startswith(_DELTA):
            self.deltas += 1
            if self.cut and json.loads(message)["response_id"] in self.cut:
                self.stale += 1
        return message


@attrs.frozen
class BargeIns:
    """``latencies_ms`` of cuts while ``talking`` other sessions talk. ``why``: what kept it from being all that was asked
    for; empty: nothing did."""

    talking: int
    latencies_ms: list[float]
    stale: int
    why: str = ""


async def barge_ins(url: str, sessions: int, rounds: int, every_ms: int = EVERY_MS) -> BargeIns:
    """One session is cut again and again; the others, ``sessions - 1``, hear long answers and send sound meanwhile, an append
    and a delta every ``every_ms``: the server's model must keep that pace."""
    latencies: list[float] = []
    stale = 0
    async with traffic(url, sessions - 1, every_ms) as others:
        why = others.why
        try:
            async with open_websocket_url(f"{url}?{QUERY}", max_message_size=2**24) as socket:
                probe = Probe(socket)
                with trio.fail_after(CUT_WAIT_S):
                    await probe.begin()
                for _ in range(rounds):
                    with trio.fail_after(CUT_WAIT_S):
                        await probe.ask(units=200)
                        latencies.append(await probe.barge_in())
                with trio.move_on_after(0.5):  # what would be stale now
                    while True:
                        await probe.receive()
                stale = probe.stale
        except* trio.TooSlowError:
            why = why or f"no answer within {CUT_WAIT_S:g} s after {len(latencies)} cuts"
        except* ConnectionClosed as closed:
            why = why or f"closed after {len(latencies)} cuts: {closed.exceptions[0]}"
        why = why or _trouble(await others.report())
    return BargeIns(others.open, latencies, stale, why)


# -- the others -------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Traffic:
    """The process that is ``adapters.bench.traffic``; ``open`` sessions talk there."""

    process: trio.Process
    open: int = 0
    why: str = ""

    async def told(self) -> dict[str, Any]:
        """Its next answer."""
        assert self.process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            got = bytes(await self.process.stdout.receive_some(ANSWER_BYTES))
            if not got:
                raise TooSlow("the process that makes the traffic is gone")
            line += got
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _ask(self, word: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(f"{word}\n".encode())
        return await self.told()

    async def reset(self) -> None:
        """Forget what was counted."""
        await self._ask("reset")

    async def report(self) -> Report:
        """What was counted since."""
        return Report(**await self._ask("report"))


@asynccontextmanager
async def traffic(url: str, sessions: int, every_ms: int = EVERY_MS) -> AsyncIterator[Traffic]:
    """So many sessions, or as many as could be opened, that talk and are answered."""
    numbers = map(str, (sessions, UNITS, every_ms))
    command = [sys.executable, "-m", "adapters.bench.traffic", f"{url}?{QUERY}", *numbers]
    process = await trio.lowlevel.open_process(command, stdin=PIPE, stdout=PIPE)
    try:
        made = Traffic(process)
        begun = await made.told()
        made.open, made.why = begun["open"], begun["why"]
        await trio.sleep(SETTLE_S)
        yield made
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


@attrs.frozen
class Load:
    """Real-time traffic of ``sessions`` for a while.

    ``server_cores``: CPU seconds a second of the server's main process; ``worker_cores`` and ``load_cores`` those of the
    model's worker and of the traffic. ``event_us``: CPU of the server for each append and each delta. ``starved``: seconds a
    second in which the server's threads could have run and others had the processor: with much of it, the machine was not the
    server's. ``commits``: transactions a second.
    """

    sessions: int
    report: Report
    seconds: float
    server_cores: float
    worker_cores: float
    load_cores: float
    starved: float
    commits: float
    why: str = ""

    @property
    def event_us(self) -> float:
        return self.server_cores * self.seconds * 1e6 / max(1, self.report.deltas + self.report.appends)


async def real_time(server: ServerProcess, sessions: int, seconds: float) -> Load:
    """Every session sends five appends and hears five deltas a second."""
    async with traffic(server.url, sessions) as talking:
        family = [*descendants(server.pid), talking.process.pid]
        written = _written(server.http_url)  # costs the server something: before and behind what is measured
        await talking.reset()
        cpu, starved, began = list(map(_cpu_s, family)), _starved_s(server.pid), time.perf_counter()
        await trio.sleep(seconds)
        took = time.perf_counter() - began
        used = [(now - then) / took for now, then in zip(map(_cpu_s, family), cpu, strict=True)]
        starved = (_starved_s(server.pid) - starved) / took
        report = await talking.report()
        batches, commits = (now - then for now, then in zip(_written(server.http_url), written, strict=True))
    taken = (batches - report.deltas) / max(1, report.appends)
    behind = f"the server took {taken:.0%} of the appends" if taken < TAKEN_MIN else ""
    why = talking.why or _trouble(report) or behind
    return Load(talking.open, report, took, used[0], sum(used[1:-1]), used[-1], starved, commits / took, why)


def _trouble(report: Report) -> str:
    """What went wrong with the sessions, if anything."""
    counts = (
        (report.lost, "connections were closed"),
        (report.ended, "answers ended"),
        (report.held_back, "appends waited"),
    )
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def _cpu_s(pid: int) -> float:
    """User and system time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _starved_s(pid: int) -> float:
    """How long a process's threads have waited for a processor so far, in seconds."""
    waits = [task.read_text().split()[1] for task in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, waits)) / 1e9


def _written(http_url: str) -> tuple[float, float]:
    """Batches and transactions of the server's store so far. Each append and each delta is a batch."""
    with urlopen(f"{http_url}/metrics", timeout=30) as page:
        counts = dict(line.rsplit(" ", 1) for line in page.read().decode().splitlines() if not line.startswith("#"))
    return float(counts["duologue_store_batches_total"]), float(counts["duologue_store_commits_total"])
