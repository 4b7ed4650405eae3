"""`duologue sessions`: what is in the log."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import UTC, datetime
from textwrap import shorten
from typing import TypeGuard

import attrs
import click

from adapters.command_line.keeping import erase_command, export_command, import_command, prune_command
from adapters.command_line.reading import (
    find_session,
    no_session,
    one_line,
    reading,
    run,
    store_option,
    without_password,
)
from adapters.wire.dialects import DIALECTS
from core.ports.keeping import Keeper
from core.ports.store import SessionRow, SessionUnknown, StoredBatch, StoreError
from core.session import events as e
from core.session.events import TAGS

TOLD_OF = (e.InputTranscript, e.ItemCreated, e.SessionClosed, e.Erased)
WORDS_CHARS_MIN = 24
PIPED_COLUMNS = 300
ENDINGS = {
    "client_close": "closed",
    "disconnect_grace_expired": "never came back",
    "erased": "not erased yet",
    "idle_ttl_expired": "silent too long",
    "pause_expired": "paused too long",
    "session_expired": "full length",
}
"""Why a session was closed -> the list's words for it. An erasure ends a session first, and may be broken off after that.
Clients may give other reasons; those are shown as they are."""
HUNG_UP = "hung up"
"""The same end where the dialect knows no coming back: a session of theirs ends with its connection."""


@attrs.frozen
class Listed:
    """A session as the list shows it. ``damage``: why its log cannot be read. ``erased``: what was said is gone."""

    row: SessionRow
    ended: str = ""
    words: str = ""
    damage: str = ""
    erased: bool = False


@click.group()
def sessions() -> None:
    """Look at recorded sessions: list them, show the events of one; keep them as files, erase them, throw them away.

    Exit codes: 0 done, 1 it could not be done, 2 wrong usage, or there is no such session or store, 3 the log, the archive or
    the store is damaged.
    """


for command in (export_command, import_command, erase_command, prune_command):
    sessions.add_command(command)


@sessions.command("list", short_help="List the newest sessions, and how each ended.")
@store_option
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many, newest first.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for other programs.")
def list_sessions(store_url: str, limit: int, as_json: bool) -> None:
    """List the newest sessions: when, how long, how it ended, and what the user said first.

    Example: duologue sessions list --limit 5
    """
    listed = run(_listed, store_url, limit)
    if as_json:
        for one in listed:
            row = attrs.asdict(one.row, filter=attrs.filters.exclude("chain"))
            click.echo(json.dumps({**row, "ended": one.ended, "words": one.words}))
        return
    if not listed:
        where = without_password(store_url)
        click.echo(f"No sessions in {where} yet. Start a server (duologue serve) and talk to it, or name its --store.")
        return
    heads = ("session", "began (UTC)", "length", "events", "state", "first words")
    cells = [heads, *(_cells(one) for one in listed)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads) - 1)]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_COLUMNS
    room = max(WORDS_CHARS_MIN, columns - sum(widths) - 2 * len(widths))
    for line in cells:  # nothing but the words is cut short: half an id is of no use
        shown = [cell.ljust(width) for cell, width in zip(line[:-1], widths, strict=True)]
        click.echo("  ".join((*shown, shorten(line[-1], room, placeholder=" ..."))).rstrip())


def _cells(one: Listed) -> tuple[str, ...]:
    row = one.row
    length = f"{(row.updated_ns - row.created_ns) / 1e9:.0f} s"
    return (row.session, _time(row.created_ns)[:19], length, str(row.position), _state(one), one_line(one.words))


def _state(one: Listed) -> str:
    if one.damage:
        return "damaged"
    if one.erased:
        return "erased"
    if not one.row.closed:
        return "open"
    dialect = DIALECTS.get(one.row.dialect)
    if one.ended == "disconnect_grace_expired" and dialect is not None and not dialect.resumable:
        return HUNG_UP
    return ENDINGS.get(one.ended) or f"closed: {one_line(one.ended)}"


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
        raise no_session(session) from None


async def _listed(url: str, limit: int) -> list[Listed]:
    async with reading(url) as store:
        return [await _look_into(store, row) for row in await store.sessions(limit)]


async def _look_into(store: Keeper, row: SessionRow) -> Listed:
    """The first words, typed or spoken, and the last event of a session."""
    try:
        events = [record.event for record in await store.picked(row.session, TOLD_OF)]
    except SessionUnknown:  # thrown away in this moment
        return Listed(row)
    except StoreError as fault:
        return Listed(row, damage=str(fault))
    ended = next((event.reason for event in events if isinstance(event, e.SessionClosed)), "")
    said = (event.text for event in events if isinstance(event, e.InputTranscript) or _is_users(event))
    erased = any(isinstance(event, e.Erased) for event in events)
    return Listed(row, ended, next(filter(str.strip, said), ""), erased=erased)


def _is_users(event: e.Event) -> TypeGuard[e.ItemCreated]:
    return isinstance(event, e.ItemCreated) and event.role == "user"


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
