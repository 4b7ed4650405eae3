"""Pruning: which sessions are thrown away, by age and by size."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import attrs

from adapters.archive.writing import Progress, silent
from core.ports.keeping import Keeper, Usage
from core.ports.store import SessionUnknown, TermRefused


@attrs.frozen
class Pruning:
    """What went and what stayed. Sizes in bytes of events and bodies."""

    pruned: tuple[str, ...]
    pruned_bytes: int
    kept: int
    kept_bytes: int


ABANDONED_NS = 3_600 * 10**9
"""What an import or a prune that was killed has left goes after so long; one that is at work is left in peace."""


def choose(usage: Sequence[Usage], now_ns: int, before_ns: int | None, keep_bytes: int | None) -> list[Usage]:
    """What was abandoned. Closed sessions whose last record is older than ``before_ns``; then the oldest closed ones, until
    what is left is no more than ``keep_bytes``. None: that rule does not apply. ``usage`` is in the order of age."""
    chosen = [one for one in usage if one.unfinished and one.updated_ns < now_ns - ABANDONED_NS]
    usage = [one for one in usage if not one.unfinished]
    chosen += [one for one in usage if one.closed and before_ns is not None and one.updated_ns < before_ns]
    if keep_bytes is None:
        return chosen
    gone = {one.session for one in chosen}
    left = sum(one.total_bytes for one in usage if one.session not in gone)
    for one in usage:
        if left <= keep_bytes:
            break
        if one.closed and one.session not in gone:
            chosen.append(one)
            left -= one.total_bytes
    return chosen


async def prune_sessions(
    store: Keeper,
    now_ns: int,
    before_ns: int | None,
    keep_bytes: int | None,
    progress: Progress = silent,
    *,
    dry_run: bool = False,
) -> Pruning:
    """Throw away what ``choose`` chooses. Raises StoreError."""
    usage = await store.usage()
    chosen = choose(usage, now_ns, before_ns, keep_bytes)
    if not dry_run:
        for done, one in enumerate(chosen, start=1):
            with suppress(SessionUnknown, TermRefused):  # somebody else prunes too, or brings it in
                await store.delete(one.session, unfinished=one.unfinished)
            progress("sessions", done, len(chosen))
        if chosen:
            await store.compact()
    pruned_bytes = sum(one.total_bytes for one in chosen)
    kept_bytes = sum(one.total_bytes for one in usage) - pruned_bytes
    return Pruning(tuple(one.session for one in chosen), pruned_bytes, len(usage) - len(chosen), kept_bytes)
