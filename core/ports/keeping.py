"""The keeper's port: what is done to logs as wholes, by people and not by sessions. Every store implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from core.ports.store import Body, Owned, Store, StoredBatch


@attrs.frozen
class Usage:
    """What a session takes up: its events as text, its bodies as bytes. ``unfinished``: it was not brought in, or not thrown
    away, to its end, and no reader sees it; ``updated_ns`` is then when that was last worked at, on the store's clock."""

    session: str
    updated_ns: int
    closed: bool
    events_bytes: int
    bodies_bytes: int
    unfinished: bool = False

    @property
    def total_bytes(self) -> int:
        """Both."""
        return self.events_bytes + self.bodies_bytes


class Keeper(Store, Protocol):
    """A store whose logs can be brought in, rewritten and thrown away."""

    async def put_bodies(self, session: str, bodies: Sequence[Body]) -> None:
        """Bodies of a log that will be put here. Until then nobody sees the session: ``withdraw``, ``delete`` and whoever
        brings it in next throw them away. Raises SessionExists, StoreFailed; TermRefused when somebody else brings the
        session in now."""

    async def put_log(self, batches: Sequence[StoredBatch], replacing: Owned | None = None) -> None:
        """A whole log, dense from position 1; to readers it is there whole or not at all. ``replacing`` None: a new session;
        raises SessionExists, TermRefused (as ``put_bodies``). Else the log that stands at that term and position is replaced,
        and then its bodies are thrown away; raises SessionUnknown, TermRefused, PositionConflict. Raises StoreFailed: asking
        again is safe."""

    async def withdraw(self, session: str) -> None:
        """Throw away what was put here of a session whose log was not; nothing when there is none, or when somebody else has
        begun to bring it in. Raises StoreFailed."""

    async def delete(self, session: str, *, unfinished: bool = False) -> None:
        """Throw a session away, log and bodies, or what was put of one (``unfinished``: only that, and SessionUnknown when
        the log is there by now). Raises SessionUnknown, StoreFailed: asking again is safe; TermRefused when somebody else
        brings the session in by now."""

    async def usage(self) -> Sequence[Usage]:
        """Of every session, those that were silent longest first. Reads no body. Raises StoreFailed."""

    async def compact(self) -> None:
        """Give the space of what was thrown away back to the system, where the database does not do so by itself. May
        take long and block writers. Raises StoreFailed."""
