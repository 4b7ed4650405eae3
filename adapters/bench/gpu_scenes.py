"""Barge-in: how long until the first token after a cut, beside an ordinary unit of the same lane and a cold start."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import attrs

from adapters.bench.figures import percentile
from adapters.bench.gpu_load import PROMPT_TOKENS, Load, Speaker
from gpu_runtime.engines.port import Said, Unit
from gpu_runtime.engines.requests import Request, RequestEngine
from gpu_runtime.engines.streamed import StreamedLanes

COLD_ROUNDS = 5
CUT_AFTER_TOKENS = 10
LATER_S = 0.3


@attrs.frozen
class BargeIns:
    """Time to the first token, in ms. ``ordinary``: a unit of a lane that nothing happened to. ``after_cut``: from the
    call that cuts an answer in mid-decode, over truncating the lane, to the first token of the next unit, which is fed at
    once. ``as_new_request``: the same where the truncated lane takes a new request, as vLLM by itself has it. ``later``: the
    unit when it comes LATER_S after the cut, as in a conversation, where the next unit has its own time. ``cold``: a lane of
    the same length that the engine has never seen."""

    history: int
    ordinary: list[float]
    after_cut: list[float]
    as_new_request: list[float]
    later: list[float]
    cold: list[float]

    def line(self) -> str:
        """One line of figures."""
        ordinary, *others = (
            percentile(values, 50)
            for values in (self.ordinary, self.after_cut, self.as_new_request, self.later, self.cold)
        )
        cut, new, later, cold = (f"{other:.1f} ms ({other / ordinary:.2f} times)" for other in others)
        return (
            f"{self.history} tokens, first token p50: ordinary unit {ordinary:.1f} ms; cut, truncated and fed at once "
            f"{cut}; the same by a new request {new}; fed {LATER_S:g} s later {later}; never seen {cold}"
        )


class NewRequests:
    """An engine whose requests do not go back, over one whose do."""

    rewinds = False

    def __init__(self, engine: RequestEngine) -> None:
        self._engine = engine
        self.limits = engine.limits
        self.kv_used = engine.kv_used
        self.shutdown = engine.shutdown
        self.wait_lost = engine.wait_lost

    def request(self, name: str) -> Request:
        """See RequestEngine."""
        return self._engine.request(f"new-{name}")


async def barge_in(engine: RequestEngine, load: Load, history: int, rounds: int) -> BargeIns:
    """Cut one lane's answers again and again."""
    speaker = Speaker(load, 77_777)
    found = BargeIns(history, [], [], [], [], [])
    heard = speaker.heard(history - PROMPT_TOKENS)
    prompt = [speaker.ids(PROMPT_TOKENS)]
    lanes, new = StreamedLanes(engine), StreamedLanes(NewRequests(engine))
    for either in (lanes, new):
        await either.open("barge-in", prompt, heard)
    for number in range(rounds):
        await _first(lanes, "barge-in", speaker.unit())
        found.ordinary.append((await _first(lanes, "barge-in", speaker.unit()))[0])
        for measured, one in ((found.after_cut, lanes), (found.as_new_request, new)):
            began_s = await _cut(one, speaker, warm=False)
            measured.append(((await _first(one, "barge-in", speaker.unit()))[1] - began_s) * 1e3)
        await _cut(lanes, speaker, warm=True)
        await asyncio.sleep(LATER_S)
        found.later.append((await _first(lanes, "barge-in", speaker.unit()))[0])
        if number < COLD_ROUNDS:
            other = Speaker(load, 88_888 + number)
            await lanes.open("cold", [other.ids(PROMPT_TOKENS)], other.heard(history - PROMPT_TOKENS), warm=False)
            found.cold.append((await _first(lanes, "cold", other.unit()))[0])
            await lanes.close("cold")
        for either in (lanes, new):
            await either.truncate("barge-in", history - 100, warm=True)
    for either in (lanes, new):
        await either.close("barge-in")
    return found


async def _cut(lanes: StreamedLanes, speaker: Speaker, warm: bool) -> float:
    """Feed a unit, cut it after some tokens, truncate the lane to a part of it. When the cut was asked for (monotonic)."""
    unit = speaker.unit()
    said = 0
    async with aclosing(lanes.feed("barge-in", Unit(unit.parts, 200))) as events:
        async for event in events:
            said += len(event.ids) if isinstance(event, Said) else 0
            if said >= CUT_AFTER_TOKENS:
                began_s = time.monotonic()
                await lanes.truncate("barge-in", lanes.history_tokens("barge-in") - CUT_AFTER_TOKENS // 2, warm=warm)
                return began_s
    raise RuntimeError("the answer was over before it could be cut")


async def _first(lanes: StreamedLanes, lane: str, unit: Unit) -> tuple[float, float]:
    """(ms to the first token, when it came)."""
    began_s = time.monotonic()
    first_s = 0.0
    async with aclosing(lanes.feed(lane, unit)) as events:
        async for event in events:
            if isinstance(event, Said):
                first_s = first_s or time.monotonic()
    return (first_s - began_s) * 1e3, first_s
