"""`duologue bench wire`: barge-in among many sessions, beside a bare echo, and how many sessions a core carries."""

from __future__ import annotations

import click
from rich.console import Console

from adapters.bench.disk import syncs
from adapters.bench.echo_server import echo_server, round_trips
from adapters.bench.environment import describe
from adapters.bench.figures import figures_table, percentile, print_table, report_console, row
from adapters.bench.own_server import own_server
from adapters.bench.traffic import EVERY_MS
from adapters.bench.wire import BargeIns, Load, barge_ins, real_time
from adapters.command_line.reading import run

LATE_MS_MAX = 50.0
HOPELESS_MS = 500.0
"""A run with a p99 beyond this is the last."""
HEADS = (
    *("n", "p50", "p99", "out/s", "in/s", "server", "worker", "load", "starved", "lag", "commits/s", "us/event"),
    *("ms/session", "/core"),
)

LEGEND = (
    "starved: the server could run and others did; lag: p99 of this load's own, ms; us/event: processor time of the server\n"
    "for each append and delta; ms/session: the same for a second of a session; /core: sessions for each core of the server"
)


@click.command(short_help="Barge-in among many sessions; sessions for each core.")
@click.option("--sessions", default="1,64,256", show_default=True, help="How many talk at once, one after the other.")
@click.option(
    "--every",
    "every_ms",
    default=EVERY_MS,
    show_default=True,
    type=click.IntRange(20, 1_000),
    help="ms from one append and one delta of those sessions to the next; 1000 is MiniCPM-o's unit.",
)
@click.option("--rounds", default=200, show_default=True, type=click.IntRange(1), help="Cuts for each of these.")
@click.option(
    "--load",
    default="16,32,64,96,128,192,256",
    show_default=True,
    help="Sessions of the real-time runs, until one is far too late; the last good one counts.",
)
@click.option("--seconds", default=20.0, show_default=True, type=click.FloatRange(1), help="Length of each of them.")
def wire(sessions: str, every_ms: int, rounds: int, load: str, seconds: float) -> None:
    """Barge-in among many sessions, beside a bare echo and a bare sync of the disk; then sessions for each core in real time.

    Durable SQLite, the scripted model in its worker, five appends and five deltas a second in each session (--every: of those
    beside which one is cut). An empty list leaves a part out. The load runs on
    the same machine: with few cores, leave it nothing else to do. "starved" says how much the server waited for a processor;
    "us/event", the server's own processor time for each append and each delta, depends on the others least.
    """
    run(_wire, counts(sessions), every_ms, rounds, counts(load), seconds)


def counts(text: str) -> list[int]:
    """Whole numbers with commas between them. Raises click.UsageError."""
    try:
        counts = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise click.UsageError(f"{text!r} is not a list of numbers") from None
    if any(count < 1 for count in counts):
        raise click.UsageError("a number of sessions is at least 1")
    return counts


async def _wire(sessions: list[int], every_ms: int, rounds: int, load: list[int], seconds: float) -> None:
    console = report_console()
    console.print(describe(0))
    most = max([*sessions, *load], default=1) + 8
    options = {"rtf": "1", "unit_ms": str(EVERY_MS), "first_audio_ms": "0", "sessions_max": str(most)}
    rows, stale = await floor_rows(max(200, rounds)), 0
    notes = []
    for count in sessions:
        result = await _cut_among(options | {"unit_ms": str(every_ms)}, most, count, rounds, every_ms)
        rows.append(row(f"barge-in sent -> cancelled received, {count} sessions", result.latencies_ms, 2))
        stale += result.stale
        if result.why:
            notes.append(f"{count} sessions: {result.why}")
    title = f"barge-in on the wire, ms; the other sessions append and hear {1_000 / every_ms:g} times a second"
    print_table(console, title, rows)
    console.print("\n".join([*notes, f"stale audio after the cancelled end: {stale} deltas"]))
    if load:
        await _real_time(console, options, most, load, seconds)


async def floor_rows(count: int) -> list[tuple[str, ...]]:
    """What no server can be quicker than, as rows of the table: a round trip of the library alone, a sync of the disk under
    the log, and both, one after the other."""
    async with echo_server() as url:
        echoes = await round_trips(url, count)
    synced = syncs(count)
    return [
        row("bare trio-websocket echo, round trip", echoes, 2),
        row("bare write of 16 KiB and fdatasync", synced, 2),
        row("both: the floor", [echo + sync for echo, sync in zip(echoes, synced, strict=True)], 2),
    ]


async def _cut_among(options: dict[str, str], most: int, count: int, rounds: int, every_ms: int) -> BargeIns:
    async with own_server("scripted", options, ("--max-sessions", str(most))) as server:
        return await barge_ins(server.url, count, rounds, every_ms)


async def _real_time(console: Console, options: dict[str, str], most: int, load: list[int], seconds: float) -> None:
    console.print(
        "n sessions in real time, 5 appends and 5 deltas a second each; lateness in ms, processor time in cores"
    )
    table = figures_table(*HEADS)
    best: Load | None = None
    notes: list[str] = []
    for count in load:
        async with own_server("scripted", options, ("--max-sessions", str(most))) as server:
            measured = await real_time(server, count, seconds)
        table.add_row(*_cells(measured))
        if measured.why:
            notes.append(f"{count} sessions: {measured.why}")
        late_ms = percentile(measured.report.lateness_ms, 99)
        if late_ms < LATE_MS_MAX and not measured.why:
            best = measured
        if not late_ms < HOPELESS_MS:
            break
    console.print(table)
    console.print("\n".join([*notes, LEGEND]))
    if best is None:
        console.print(f"no run kept p99 under {LATE_MS_MAX:g} ms")
    else:
        console.print(
            f"{best.sessions} sessions with p99 under {LATE_MS_MAX:g} ms, "
            f"{best.sessions / best.server_cores:.0f} for each core of the server"
        )


def _cells(load: Load) -> tuple[str, ...]:
    late, lag, per_session = load.report.lateness_ms, load.report.lag_ms, load.server_cores / max(1, load.sessions)
    return (
        str(load.sessions),
        f"{percentile(late, 50):.1f}",
        f"{percentile(late, 99):.1f}",
        f"{load.report.deltas / load.seconds:.0f}",
        f"{load.report.appends / load.seconds:.0f}",
        f"{load.server_cores:.2f}",
        f"{load.worker_cores:.2f}",
        f"{load.load_cores:.2f}",
        f"{load.starved:.2f}",
        f"{percentile(lag, 99):.1f}",
        f"{load.commits:.0f}",
        f"{load.event_us:.0f}",
        f"{per_session * 1_000:.1f}",
        f"{1 / per_session:.0f}" if per_session else "-",
    )
