"""The texts of a session's committed turns, some of them still being made."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

ITEMS_MAX = 512


class Transcripts:
    """item_id -> text. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, str | None] = OrderedDict()
        self._waiting: list[tuple[frozenset[str], Callable[[], None]]] = []

    def expect(self, item_id: str) -> None:
        """The text of ``item_id`` will come."""
        with self._lock:
            self._texts.setdefault(item_id, None)
            while len(self._texts) > ITEMS_MAX:
                self._texts.popitem(last=False)

    def put(self, item_id: str, text: str) -> None:
        """The text of ``item_id`` is here."""
        with self._lock:
            self._texts[item_id] = text
            ready = [then for items, then in self._waiting if not self._missing(items)]
            self._waiting = [(items, then) for items, then in self._waiting if self._missing(items)]
        for then in ready:
            then()

    def text(self, item_id: str) -> str:
        """Its text, "" when it is not known (the turn was heard by another process, say)."""
        with self._lock:
            return self._texts.get(item_id) or ""

    def when_known(self, item_ids: frozenset[str], then: Callable[[], None]) -> None:
        """Call ``then`` once, when none of these texts is still to come: at once, or on the thread that brings the last."""
        with self._lock:
            missing = self._missing(item_ids)
            if missing:
                self._waiting.append((item_ids, then))
        if not missing:
            then()

    def _missing(self, item_ids: frozenset[str]) -> bool:
        return any(item_id in self._texts and self._texts[item_id] is None for item_id in item_ids)
