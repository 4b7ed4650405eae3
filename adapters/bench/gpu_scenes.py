"""Barge-in: how long until the first token after a cut, beside an ordinary unit of the same lane and a cold start."""

from __future__ import annotations

import time
from contextlib import aclosing

import attrs

from adapters.bench.figures import percentile
from adapters.bench.gpu_load import PROMPT_TOKENS, Load, Speaker
from gpu_runtime.engines.port import Said, Unit
from gpu_runtime.engines.streamed import StreamedLanes

ROUNDS = 20
CUT_AFTER_TOKENS = 10


@attrs.frozen
class BargeIns:
    """Time to the first token, in ms. ``ordinary``: a unit of a lane that nothing happened to. ``after_cut``: from the
    call that cuts an answer in mid-decode, over truncating the lane, to the first token of the next unit. ``warmed``: the
    same unit when it comes after the truncated lane was made warm, as in a conversation. ``cold``: a lane of the same
    length that the engine has never seen."""

    history: int
    ordinary: list[float]
    after_cut: list[float]
    warmed: list[float]
    cold: list[float]
    cached: list[int]

    def line(self) -> str:
        """One line of figures."""
        ordinary, cut, warmed, cold = (
            percentile(values, 50) for values in (self.ordinary, self.after_cut, self.warmed, self.cold)
        )
        return (
            f"{self.history} tokens, first token p50: ordinary unit {ordinary:.1f} ms; cut, truncated and fed at once "
            f"{cut:.1f} ms ({cut / ordinary:.2f} times); fed once the lane is warm {warmed:.1f} ms "
            f"({warmed / ordinary:.2f} times); cold {cold:.1f} ms; cached {min(self.cached)} tokens at least"
        )


async def barge_in(lanes: StreamedLanes, load: Load, history: int) -> BargeIns:
    """Cut one lane's answers again and again."""
    speaker = Speaker(load, 77_777)
    found = BargeIns(history, [], [], [], [], [])
    heard = speaker.heard(history - PROMPT_TOKENS)
    await lanes.open("barge-in", [speaker.ids(PROMPT_TOKENS)], heard)
    for number in range(ROUNDS):
        await _first(lanes, "barge-in", speaker.unit())
        found.ordinary.append((await _first(lanes, "barge-in", speaker.unit()))[0])
        for measured, warm in ((found.after_cut, False), (found.warmed, True)):
            began_s = await _cut(lanes, speaker, warm)
            if warm:
                began_s = time.monotonic()
            _, cached, first_s = await _first(lanes, "barge-in", speaker.unit())
            measured.append((first_s - began_s) * 1e3)
            if not warm:
                found.cached.append(cached)
        if number < 5:
            other = Speaker(load, 88_888 + number)
            await lanes.open("cold", [other.ids(PROMPT_TOKENS)], other.heard(history - PROMPT_TOKENS), warm=False)
            found.cold.append((await _first(lanes, "cold", other.unit()))[0])
            await lanes.close("cold")
        await lanes.truncate("barge-in", history - 100)
    await lanes.close("barge-in")
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


async def _first(lanes: StreamedLanes, lane: str, unit: Unit) -> tuple[float, int, float]:
    """(ms to the first token, cached tokens, when the first token came)."""
    began_s = time.monotonic()
    first_s, cached = 0.0, 0
    async with aclosing(lanes.feed(lane, unit)) as events:
        async for event in events:
            if isinstance(event, Said):
                first_s = first_s or time.monotonic()
            else:
                cached = event.cached_tokens
    return (first_s - began_s) * 1e3, cached, first_s
