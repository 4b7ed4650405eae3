"""The keeper's port: what is done to logs as wholes, by people and not by sessions. Every store implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from core.ports.store import Body, Owned, Store, StoredBatch


@attrs.frozen
class Usage:
    """What a session takes up: its events as text, its bodies as bytes."""

    session: str
    updated_ns: int
    closed: bool
    events_bytes: int
    bodies_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both."""
        return self.events_bytes + self.bodies_bytes


class Keeper(Store, Protocol):
    """A store whose logs can be brought in, rewritten and thrown away."""

    async def put_bodies(self, session: str, bodies: Sequence[Body]) -> None:
        """Bodies of a log that will be put (or of none: then they lie there until ``delete``). Raises StoreFailed."""

    async def put_log(self, batches: Sequence[StoredBatch], replacing: Owned | None = None) -> None:
        """A whole log, dense from position 1, as one transaction. ``replacing`` None: a new session; raises
        SessionExists. Else the log that stands at that term and position is replaced, and its bodies are thrown away;
        raises SessionUnknown, TermRefused, PositionConflict. Raises StoreFailed."""

    async def delete(self, session: str) -> None:
        """Throw a session away, log and bodies. Raises SessionUnknown, StoreFailed."""

    async def usage(self) -> Sequence[Usage]:
        """Of every session, those that were silent longest first. Reads no body. Raises StoreFailed."""

    async def compact(self) -> None:
        """Give the space of what was thrown away back to the system, where the database does not do so by itself. May
        take long and block writers. Raises StoreFailed."""
