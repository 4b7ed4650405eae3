"""What a projection must remember of an answer: which of its frames a cut would kill, and whether its end was told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import attrs

from core.session.state import RESPONSES_MAX

MORTAL_RANGES_MAX = 1_024
"""Ranges kept of one answer; only those above a cursor matter, and an answer is bounded in how far ahead it may be."""


@attrs.frozen
class Call:
    """A function call, from the first of its events, which announces it, to the last, with which it is made."""

    first: int
    last: int
    item: dict[str, Any]


@attrs.define
class Answer:
    """One response in the stream.

    Invariant: exactly one ``response.done`` of it reaches a client. The first is mortal (``done_number``). The first cut
    after it decides: with a cursor below it, it is dead and another one takes its place; otherwise it was handed over.
    Either way it is ``settled`` then, and no later cut can touch it.
    """

    response_id: str
    item_id: str
    epoch: int
    spoken: bool
    """It answers in audio, so its text is a transcript."""
    metadata: dict[str, Any]
    item_index: int | None = None
    """Where its message stands among its output items; None while there is no message."""
    calls: list[Call] = attrs.field(factory=list)
    items_made: int = 0
    mortal: deque[tuple[int, int]] = attrs.field(factory=lambda: deque(maxlen=MORTAL_RANGES_MAX))
    last_delta: int = 0
    done_number: int | None = None
    settled: bool = False
    handed_over: bool = False
    """Its end was with the client when the first cut came; since version 2 of the stream: all that it said was."""
    cut_cursor: int | None = None
    status: str = "in_progress"
    reason: str = ""
    usage: tuple[int, int] | None = None

    def mark_mortal(self, first: int, last: int) -> None:
        """Frames that a cut above its cursor would kill, by their numbers."""
        if self.mortal and self.mortal[-1][1] == first - 1:
            self.mortal[-1] = (self.mortal[-1][0], last)
        else:
            self.mortal.append((first, last))

    def mark_deltas(self, first: int, last: int) -> None:
        """The same, for frames that carry the answer itself."""
        self.mark_mortal(first, last)
        self.last_delta = last

    def dead_above(self, cursor: int) -> list[list[int]]:
        """The ranges of numbers above ``cursor`` that a cut there kills."""
        return [[max(first, cursor + 1), last] for first, last in self.mortal if last > cursor]

    def take_index(self) -> int:
        """The next place among the output items."""
        self.items_made += 1
        return self.items_made - 1


class Answers:
    """The answers of a session that a cut may still touch, oldest first; at most as many as the machine remembers."""

    def __init__(self) -> None:
        self._by_id: dict[str, Answer] = {}

    def __iter__(self) -> Iterator[Answer]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, response_id: str | None) -> Answer | None:
        """The answer of that id, while it is remembered."""
        return self._by_id.get(response_id or "")

    def add(self, answer: Answer) -> None:
        """A new one; the oldest is forgotten beyond the bound."""
        self._by_id[answer.response_id] = answer
        while len(self._by_id) > RESPONSES_MAX:
            del self._by_id[next(iter(self._by_id))]

    def unopened_items(self) -> frozenset[str]:
        """Items that the machine has and the client was not told of yet: answers that have not begun to come."""
        return frozenset(answer.item_id for answer in self._by_id.values() if answer.item_index is None)


@attrs.frozen
class Ending:
    """How an answer ends on the wire. ``skipped``: ranges of numbers that die with it."""

    status: str
    reason: str
    kind: str
    text: str
    skipped: list[list[int]] = attrs.field(factory=list)
