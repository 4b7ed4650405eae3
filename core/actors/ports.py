"""What an actor reaches the world by."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from core.ports import runtime as rt
from core.ports.store import Store
from core.session import events as e

if TYPE_CHECKING:
    from core.actors.session import Session


class Watch:
    """What an observer (metrics, logs) may count. The base counts nothing; methods must not raise."""

    def stepped(self, session: Session, records: tuple[e.Record, ...]) -> None:
        """A step led to these records."""

    def stale_output(self, session: Session) -> None:
        """Model output of an epoch that is over was dropped."""

    def input_lost(self, session: Session) -> None:
        """A chunk of the user's audio did not reach the ear: the worker does not keep up."""

    def durable(self, session: Session, waited_s: float) -> None:
        """A batch became durable."""

    def handed_over(self, session: Session) -> None:
        """A frame went to a socket."""


@attrs.frozen
class Ports:
    """``encode`` turns effects and frames into bytes for the chained digest; ``now_ns`` is the wall clock; ``silent_s``: for
    how long a lane that owes an answer may say nothing."""

    store: Store
    runtime: rt.Runtime
    now_ns: Callable[[], int]
    encode: Callable[[object], bytes]
    watch: Watch
    silent_s: float = 120.0
