"""`duologue sessions export | import | erase | prune`: sessions as files, and what is not kept."""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from adapters.archive.bringing_in import Imported, import_session
from adapters.archive.erasing import Erasure, erase_session
from adapters.archive.layout import Manifest
from adapters.archive.pruning import Pruning, prune_sessions
from adapters.archive.reading_lines import ArchiveInvalid
from adapters.archive.writing import export_session
from adapters.command_line.reading import (
    Damaged,
    find_session,
    no_session,
    reading,
    run,
    store_option,
    told_of,
)
from adapters.replay.replaying import SessionUnreadable
from core.ports.keeping import Keeper
from core.ports.store import SessionExists, SessionUnknown
from store.opening import open_store

Show = Callable[[str, int, int], None]

_AGES_S = {"s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SIZES = {"B": 1, "kB": 1_000, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Quantity(click.ParamType[int]):
    """A number with a unit."""

    def __init__(self, name: str, units: dict[str, int]) -> None:
        self.name = name
        self.units = units

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """In the smallest unit."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", str(value))
        if match is None or match[2] not in self.units:
            self.fail(f"{value!r} is not a number with one of the units {', '.join(self.units)}", param, ctx)
        return int(float(match[1]) * self.units[match[2]])


@contextmanager
def _bar(label: str) -> Iterator[Show]:
    """A bar on a terminal, nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(f"{label}: {what}", total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield show


@click.command("export", short_help="Write a session with its audio into one file.")
@click.argument("session")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@store_option
def export_command(session: str, file: Path | None, store_url: str) -> None:
    """Write a session with all its audio into one file, SESSION.zip unless FILE is given.

    Example: duologue sessions export duplex-4f... talk.zip
    """
    try:
        path, manifest = run(_export, store_url, session, file)
    except SessionUnknown:
        raise no_session(session) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or file} cannot be written: {error.strerror}") from None
    click.echo(
        f"{path}: {manifest.events} events, {len(manifest.bodies)} sounds and pictures, {_size(path.stat().st_size)}"
    )


async def _export(url: str, given: str, file: Path | None) -> tuple[Path, Manifest]:
    async with reading(url) as store:
        session = await find_session(store, given)
        path = file or Path(f"{session}.zip")
        with _bar("export") as show:
            return path, await export_session(store, session, path, show)


@click.command("import", short_help="Bring exported sessions into a store.")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@store_option
def import_command(files: tuple[Path, ...], store_url: str) -> None:
    """Bring exported sessions into a store, which may be of another kind and on another machine.

    Example: duologue sessions import talk.zip --store postgresql://localhost/duologue
    """
    for path in files:
        try:
            found = run(_import, store_url, path)
        except (ArchiveInvalid, zipfile.BadZipFile) as fault:
            raise Damaged(f"{path}: {fault}") from None
        except SessionExists as fault:
            raise click.ClickException(f"{path}: session {fault} is in the store already") from None
        replayed = "replays exactly" if found.replay.exact else "differs from what was recorded (see duologue replay)"
        click.echo(f"{found.manifest.session}: {found.manifest.events} events, {replayed}")


async def _import(url: str, path: Path) -> Imported:
    async with _writing(url) as store:
        with _bar("import") as show:
            return await import_session(store, path, show)


@click.command("erase", short_help="Erase what was said in a session, for good.")
@click.argument("session")
@store_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def erase_command(session: str, store_url: str, yes: bool) -> None:
    """Erase what was said in a session: its audio and its texts. It is ended first, if it still goes on. The log stays, with
    lengths and times, and still folds. This cannot be undone.

    Example: duologue sessions erase duplex-4f...
    """
    try:
        whole = run(_whole_id, store_url, session)
        if whole != session:
            raise click.UsageError(f"what is erased is gone for good, so give the whole id: {whole}")
        if not yes:
            click.confirm(f"Erase the audio and the texts of {session} for good?", abort=True)
        done = run(_erase, store_url, session)
    except SessionUnknown:
        raise no_session(session) from None
    except SessionUnreadable as fault:
        raise Damaged(f"{session} cannot be folded, so it cannot be erased (prune it): {fault}") from None
    note = "" if done.was_exact else "; before, it did not replay as recorded"
    click.echo(f"{session}: {done.events} events are left, without words and sounds{note}")


async def _whole_id(url: str, given: str) -> str:
    async with reading(url) as store:
        return await find_session(store, given)


async def _erase(url: str, session: str) -> Erasure:
    async with reading(url) as store:
        with _bar("erase") as show:
            return await erase_session(store, session, time.time_ns, show)


@click.command("prune")
@store_option
@click.option(
    "--older-than", type=Quantity("age", _AGES_S), help="Sessions that were silent for so long: 90d, 12h, 2w."
)
@click.option(
    "--keep-at-most", type=Quantity("size", _SIZES), help="Then the oldest, until all together are smaller: 20GB."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def prune_command(store_url: str, older_than: int | None, keep_at_most: int | None, dry_run: bool) -> None:
    """Throw old sessions away, log and audio. Sessions that are open stay. What a killed import has left goes after an hour.

    Example: duologue sessions prune --older-than 90d --keep-at-most 20GB
    """
    if older_than is None and keep_at_most is None:
        raise click.UsageError("say --older-than, --keep-at-most, or both")
    done = run(_prune, store_url, older_than, keep_at_most, dry_run)
    verb = "would go" if dry_run else "are gone"
    kept = f"{done.kept} sessions of {_size(done.kept_bytes)} stay"
    click.echo(f"{len(done.pruned)} sessions of {_size(done.pruned_bytes)} {verb}; {kept}")


async def _prune(url: str, older_than_s: int | None, keep_bytes: int | None, dry_run: bool) -> Pruning:
    async with reading(url) as store:
        with _bar("prune") as show:
            now_ns = time.time_ns()
            before_ns = None if older_than_s is None else now_ns - older_than_s * 10**9
            return await prune_sessions(store, now_ns, before_ns, keep_bytes, show, dry_run=dry_run)


@asynccontextmanager
async def _writing(url: str) -> AsyncIterator[Keeper]:
    """The store at ``url``, made where there is none."""
    with told_of(url, "written"):
        async with open_store(url) as store:
            yield store


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 1_000)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
