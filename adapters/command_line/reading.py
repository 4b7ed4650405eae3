"""What the commands that read a store share: opening it, and saying what to do when that fails."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import click
import trio

from core.ports.keeping import Keeper
from core.ports.store import LogUnreadable, SessionExists, SessionUnknown, Store, StoreDamaged, StoreError
from store.opening import MEMORY_URLS, file_of, open_store
from store.sql.urls import StoreUrlInvalid

DEFAULT_STORE = "sqlite:///duologue.sqlite3"
PREFIX_ROWS_MAX = 10_000
"""Among how many of the newest sessions the beginning of an id is looked for."""

T = TypeVar("T")

store_option = click.option(
    "--store",
    "store_url",
    default=DEFAULT_STORE,
    show_default=True,
    envvar="DUOLOGUE_STORE",
    help="Where the sessions' logs are: the URL that `duologue serve` was given [env: DUOLOGUE_STORE].",
)


class NotThere(click.ClickException):
    """A session or a store that was named is not there."""

    exit_code = 2


class Damaged(click.ClickException):
    """A store or a log is there, and damaged."""

    exit_code = 3


def no_session(session: str) -> NotThere:
    """Says which, and how to find one."""
    return NotThere(f"no session {session}. List them: duologue sessions list")


def run(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """trio.run, with one exception out of a nursery as itself: click and the caller know what to do with it."""
    try:
        return trio.run(function, *args)
    except BaseExceptionGroup as group:
        leaf: BaseException = group
        while isinstance(leaf, BaseExceptionGroup) and len(leaf.exceptions) == 1:
            leaf = leaf.exceptions[0]
        raise leaf from None


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[Keeper]:
    """The store at ``url``. A SQLite file must be there already: reading makes none."""
    with told_of(url, "read"):
        if url in MEMORY_URLS:
            raise NotThere(f"a store in memory ({url}) ends with its server: there is nothing to look at. Name another")
        path = file_of(url)
        if path is not None and not path.exists():
            raise NotThere(f"there is no store at {path}. Name the server's with --store, or start one: duologue serve")
        async with open_store(url) as store:
            yield store


@contextmanager
def told_of(url: str, what: str) -> Iterator[None]:
    """What is wrong with the store at ``url``, in words and with an exit code."""
    try:
        yield
    except (SessionUnknown, SessionExists):
        raise
    except StoreError as fault:
        kind = Damaged if isinstance(fault, StoreDamaged | LogUnreadable) else NotThere
        raise kind(f"the store at {without_password(url)} cannot be {what}: {fault}") from fault
    except StoreUrlInvalid as fault:
        raise NotThere(f"--store {without_password(url)}: {fault}") from None


def without_password(url: str) -> str:
    """The URL as it may be shown: what people see, they paste."""
    return re.sub(r"(://[^:/@]*:).*@", r"\1***@", url)


def one_line(text: str) -> str:
    """What somebody said, for a line on a terminal: no character in it moves the cursor or ends the line."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


async def find_session(store: Store, given: str) -> str:
    """The id of the session that ``given`` names: a whole id, or the beginning of one (as `git` does it), which may leave
    out the dialect before the dash. Raises SessionUnknown; NotThere for a beginning of several."""
    try:
        return (await store.session(given)).session
    except SessionUnknown:
        rows = await store.sessions(PREFIX_ROWS_MAX)
    found = [
        row.session for row in rows if given and given in (row.session[: len(given)], _tail(row.session)[: len(given)])
    ]
    if len(found) > 1:
        shown = ", ".join(found[:3]) + (" ..." if len(found) > 3 else "")
        raise NotThere(f"{given} is the beginning of {len(found)} sessions: {shown}. Give more of the id")
    if not found:
        raise SessionUnknown(given)
    return found[0]


def _tail(session: str) -> str:
    return session.partition("-")[2]
