"""Sessions that send a unit a second, at random phases, to lanes or to raw vLLM."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import attrs
import numpy as np

from gpu_runtime.engines.port import Embeddings, LaneError, Part, Said, Tokens, Unit, UnitEnd
from gpu_runtime.engines.requests import PREFILL, Sampling
from gpu_runtime.scheduler.server import UnitServer

PROMPT_TOKENS = 200
POOL = 256
"""Different embeddings that units draw from; memory for more would say nothing more."""

OPENING_AT_ONCE = 8


@attrs.frozen
class Load:
    """What a session sends. ``history``: tokens in its lane at the start, spread evenly from ``history_min`` to as far
    above, so that windows do not all slide in one second."""

    unit_ms: int
    rows: int
    control: int
    new_tokens: int
    width: int
    vocabulary: int
    history: int
    history_min: int
    seed: int


@attrs.define
class Units:
    """What was measured, a value for each unit, in ms from the instant at which it was due. ``session`` and ``due_s`` (from
    the first one's start) say which unit it was."""

    sessions: int
    open_s: float = 0.0
    start_s: float = 0.0
    """When the load began (monotonic)."""
    session: list[int] = attrs.field(factory=list)
    due_s: list[float] = attrs.field(factory=list)
    times_ms: list[float] = attrs.field(factory=list)
    first_ms: list[float] = attrs.field(factory=list)
    slid: list[bool] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)
    enough: bool = False
    """Set it to let the load end with the units that run."""

    def plain(self, unit_ms: int) -> dict[str, Any]:
        """For a file: a row for each session, with a place for each of its units; null where one ended with an error."""
        phases: dict[int, float] = {}
        for session, due_s in zip(self.session, self.due_s, strict=True):
            phases[session] = min(due_s, phases.get(session, due_s))
        count = max((self._number(phases, place, unit_ms) for place in range(len(self.session))), default=-1) + 1
        rows: dict[str, dict[int, list[float | None]]] = {
            name: {session: [None] * count for session in sorted(phases)} for name in ("times_ms", "first_ms")
        }
        slid = []
        for place, session in enumerate(self.session):
            number = self._number(phases, place, unit_ms)
            rows["times_ms"][session][number] = round(self.times_ms[place], 1)
            rows["first_ms"][session][number] = round(self.first_ms[place], 1)
            if self.slid[place]:
                slid.append((session, number))
        return {
            "sessions": self.sessions,
            "open_s": round(self.open_s, 2),
            "errors": self.errors,
            "phases_s": [phases[session] for session in sorted(phases)],
            **{name: list(by_session.values()) for name, by_session in rows.items()},
            "units with a slide: session, number": sorted(slid),
        }

    def _number(self, phases: dict[int, float], place: int, unit_ms: int) -> int:
        return round((self.due_s[place] - phases[self.session[place]]) * 1_000 / unit_ms)

    def since(self, place: int) -> Units:
        """Those that ended behind the first ``place``; what the line of figures needs of them."""
        return Units(self.sessions, self.open_s, times_ms=self.times_ms[place:], first_ms=self.first_ms[place:])


class Driver(Protocol):
    """What is under load."""

    async def open(self, session: str, prompt: Sequence[Part], heard: Sequence[Sequence[Part]]) -> None: ...

    def unit(self, session: str, unit: Unit) -> AsyncGenerator[Said | UnitEnd, None]: ...

    async def close(self, session: str) -> None: ...


class LaneDriver:
    """Lanes behind the unit scheduler."""

    def __init__(self, server: UnitServer) -> None:
        self._server = server

    async def open(self, session: str, prompt: Sequence[Part], heard: Sequence[Sequence[Part]]) -> None:
        """See Driver."""
        await self._server.open(session, prompt, heard, kv_tokens=0)

    def unit(self, session: str, unit: Unit) -> AsyncGenerator[Said | UnitEnd, None]:
        """See Driver."""
        return self._server.feed(session, unit)

    async def close(self, session: str) -> None:
        """See Driver."""
        await self._server.close(session)


class RawDriver:
    """vLLM's streaming input and nothing else: no history, no carried token, no window, no guard."""

    def __init__(self, requests: Any) -> None:
        self._requests = requests
        self._open: dict[str, Any] = {}
        self._serial = 0

    async def open(self, session: str, prompt: Sequence[Part], heard: Sequence[Sequence[Part]]) -> None:
        """See Driver."""
        self._serial += 1
        request = self._open[session] = self._requests.request(f"raw-{session}-{self._serial}")
        async for _ in request.push([*prompt, *(part for unit in heard for part in unit)], PREFILL):
            pass

    async def unit(self, session: str, unit: Unit) -> AsyncGenerator[Said | UnitEnd, None]:
        """See Driver."""
        async for piece in self._open[session].push(unit.parts, Sampling(unit.max_new_tokens)):
            if piece.ids:
                yield Said(piece.ids, time.monotonic_ns())
        yield UnitEnd("length", 0, 0, False, None, ())

    async def close(self, session: str) -> None:
        """See Driver."""
        await self._open.pop(session).close()


class Speaker:
    """Makes one session's units."""

    def __init__(self, load: Load, number: int) -> None:
        self._load = load
        self._random = random.Random(load.seed * 1_000_003 + number)
        self._pool = pool(load)

    def ids(self, count: int) -> Tokens:
        return Tokens(tuple(self._random.randrange(5, self._load.vocabulary) for _ in range(count)))

    def came_in(self) -> tuple[Part, ...]:
        rows = Embeddings(self._pool[self._random.randrange(len(self._pool))])
        return (self.ids(self._load.control - self._load.control // 2), rows, self.ids(self._load.control // 2))

    def unit(self) -> Unit:
        return Unit(self.came_in(), self._load.new_tokens)

    def heard(self, tokens: int) -> list[tuple[Part, ...]]:
        """Units of the past, so many tokens of them."""
        one = self._load.rows + self._load.control + self._load.new_tokens
        return [(*self.came_in(), self.ids(self._load.new_tokens)) for _ in range(max(tokens // one, 0))]

    def history_tokens(self) -> int:
        spread = max(self._load.history - self._load.history_min, 0)
        return self._load.history + self._random.randint(-spread, spread)

    def phase_s(self) -> float:
        return self._random.random() * self._load.unit_ms / 1_000


_pools: dict[tuple[int, int], Any] = {}


def pool(load: Load) -> Any:
    """[POOL, rows, width] float32, of the size that audio embeddings have."""
    key = (load.rows, load.width)
    if key not in _pools:
        made = np.random.default_rng(load.seed).standard_normal((POOL, load.rows, load.width))
        _pools[key] = (made * 0.02).astype(np.float32)
    return _pools[key]


async def run_load(
    driver: Driver, load: Load, sessions: int, seconds: int, units: Units | None = None, stop_s: float = math.inf
) -> Units:
    """Open ``sessions``, let each send ``seconds`` of units, or until ``stop_s`` (monotonic), close them. ``units`` are
    filled as they come."""
    units = units or Units(sessions)
    speakers = {f"s{number}": Speaker(load, number) for number in range(sessions)}
    began_s = time.monotonic()
    gate = asyncio.Semaphore(OPENING_AT_ONCE)

    async def open_one(session: str, speaker: Speaker) -> None:
        async with gate:
            heard = speaker.heard(speaker.history_tokens() - PROMPT_TOKENS)
            await driver.open(session, [speaker.ids(PROMPT_TOKENS)], heard)

    await asyncio.gather(*(open_one(*one) for one in speakers.items()))
    units.open_s = time.monotonic() - began_s
    start_s = units.start_s = time.monotonic() + 0.2
    count = max(seconds * 1_000 // load.unit_ms, 1)
    await asyncio.gather(*(_talk(driver, load, units, *one, start_s, count, stop_s) for one in speakers.items()))
    for session in speakers:
        await driver.close(session)
    return units


async def _talk(
    driver: Driver,
    load: Load,
    units: Units,
    session: str,
    speaker: Speaker,
    start_s: float,
    count: int,
    stop_s: float,
) -> None:
    """Units are sent when they are due, whether the one before is done or not."""
    due_s = start_s + speaker.phase_s()
    running: set[asyncio.Task[None]] = set()
    for number in range(count):
        await asyncio.sleep(max(due_s + number * load.unit_ms / 1_000 - time.monotonic(), 0))
        if units.enough or time.monotonic() > stop_s:
            break
        if running:  # raw vLLM takes a chunk at a time; the delay counts, since time runs from the due instant
            await asyncio.wait(running)
        task = asyncio.create_task(_one(driver, units, session, speaker.unit(), due_s + number * load.unit_ms / 1_000))
        running.add(task)
        task.add_done_callback(running.discard)
    if running:
        await asyncio.gather(*running)


async def _one(driver: Driver, units: Units, session: str, unit: Unit, due_s: float) -> None:
    first_s = 0.0
    slid = False
    try:
        async with aclosing(driver.unit(session, unit)) as events:
            async for event in events:
                if isinstance(event, Said):
                    first_s = first_s or time.monotonic()
                else:
                    slid = event.slid is not None
    except LaneError as error:
        units.errors.append(f"{session}: {error.code}")
        return
    units.session.append(int(session[1:]))
    units.due_s.append(round(due_s - units.start_s, 3))
    units.times_ms.append(round((time.monotonic() - due_s) * 1e3, 2))
    units.first_ms.append(round((first_s - due_s) * 1e3, 2))
    units.slid.append(slid)
