"""`duologue sessions`: what is in the log."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import attrs
import click

from adapters.command_line.keeping import erase_command, export_command, import_command, prune_command
from adapters.command_line.reading import find_session, reading, run, store_option
from core.ports.store import SessionRow, SessionUnknown, StoredBatch
from core.session.events import TAGS


@click.group()
def sessions() -> None:
    """Look at recorded sessions: list them, show the events of one; keep them as files, erase them, throw them away."""


for command in (export_command, import_command, erase_command, prune_command):
    sessions.add_command(command)


@sessions.command("list")
@store_option
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many, newest first.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for other programs.")
def list_sessions(store_url: str, limit: int, as_json: bool) -> None:
    """List the newest sessions.

    Example: duologue sessions list --limit 5
    """
    rows = run(_rows, store_url, limit)
    if as_json:
        for row in rows:
            click.echo(json.dumps(attrs.asdict(row)))
        return
    if not rows:
        click.echo("No sessions yet. Start a server (duologue serve) and talk to it.")
        return
    heads = ("session", "began (UTC)", "length", "events", "dialect", "state")
    cells = [heads, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    for line in cells:  # never cut short: half an id is of no use
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cells(row: SessionRow) -> tuple[str, ...]:
    length = f"{(row.updated_ns - row.created_ns) / 1e9:.0f} s"
    state = "closed" if row.closed else "open"
    return (row.session, _time(row.created_ns), length, str(row.position), row.dialect, state)


@sessions.command("show")
@click.argument("session")
@store_option
@click.option("--type", "tags", multiple=True, help="Only events of this type (repeatable), e.g. --type epoch_bump.")
def show(session: str, store_url: str, tags: tuple[str, ...]) -> None:
    """Show a session's events, one JSON object a line. The beginning of an id is enough.

    Example: duologue sessions show duplex-4f... --type commit --type response_started
    """
    unknown = [tag for tag in tags if tag not in TAGS.values()]
    if unknown:
        raise click.UsageError(f"no event type {unknown[0]!r}; there are: {', '.join(sorted(TAGS.values()))}")
    try:
        run(_show, store_url, session, frozenset(tags))
    except SessionUnknown:
        raise click.ClickException(f"no session {session}. List them: duologue sessions list") from None


async def _rows(url: str, limit: int) -> list[SessionRow]:
    async with reading(url) as store:
        return list(await store.sessions(limit))


async def _show(url: str, session: str, tags: frozenset[str]) -> None:
    async with reading(url) as store:
        session = await find_session(store, session)
        position = 0
        while batches := await store.read(session, position):
            for batch in batches:
                _print_batch(batch, tags)
            position = batches[-1].records[-1].position


def _print_batch(batch: StoredBatch, tags: frozenset[str]) -> None:
    for record in batch.records:
        tag = TAGS[type(record.event)]
        if tags and tag not in tags:
            continue
        head = {"position": record.position, "epoch": record.epoch, "at": _time(record.at_ns), "type": tag}
        click.echo(json.dumps({**head, **attrs.asdict(record.event)}, ensure_ascii=False))


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
