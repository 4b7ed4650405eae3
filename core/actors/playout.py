"""Model output between the runtime and the log: held while it is early, released when it is due, and bounded.

What is bounded, and what becomes of the excess: output that waits in the mailbox or here (that answer fails, as
``mailbox_overflow``), the silence of a lane that owes an answer (it fails, as ``model_silent``), and frames that wait for the
socket (the answer fails, as ``output_backpressure``; a client that still takes nothing is dropped; where there is no client,
the oldest frames leave, and who comes back is told so).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from core.actors.pacer import Held, Pacer, PacerFull
from core.actors.translate import command_from
from core.ports.runtime import Produced
from core.session import commands as c
from core.session import events as e
from core.session.config import SessionConfig
from core.session.time_units import NS_PER_S

if TYPE_CHECKING:
    from core.actors.session import Session


SILENT_LOOKS = 12
"""A lane's silence is counted in looks, not in seconds: a process that was held up itself (stopped, or paused with its
machine) passes one of them, and not all, before it has read what the lane said meanwhile."""


@attrs.define
class Playout:
    """One session's. Nothing here waits."""

    session: Session
    pacer: Pacer
    silent_s: float
    """A lane that owes an answer and says nothing for so long, neither a word nor its end, is taken to have lost it."""
    output_lost: bool = False
    """Output did not fit somewhere; the answer that it was part of fails at the next turn."""
    looked_ns: int = 0
    """When the lane last said something, or was told that it may, or was looked at and was silent still."""
    silent_looks: int = 0
    """How often in a row it was silent still."""

    def configure(self, config: SessionConfig) -> None:
        """The leads have changed, perhaps."""
        self.pacer.lead_ms = config.max_client_lead_ms
        self.pacer.lane_lead_ms = config.max_lane_lead_ms

    def follow(self, records: Iterable[e.Record]) -> None:
        """What the log's newest records mean for what is held, and for what the client has not played."""
        for record in records:
            match record.event:
                case e.ResponseStarted():
                    self._moved(record.at_ns)
                case e.EpochBump():
                    self.pacer.drop()
                case e.PlaybackAck(truncate=True):
                    self.session.outbox.fall_silent()

    def put(self, message: Held) -> None:
        """The runtime's next word about an answer. What is of no answer that is being made goes to the machine at once,
        which drops it."""
        session = self.session
        active = session.state.active
        if active is None or message.response_id != active.response_id:
            session.step(*command_from(message))
            return
        self._moved(session.now_ns())
        if isinstance(message, Produced) and message.kind == "listen" and active.text:
            session.step(*command_from(message))  # the model gives way: what is held is not waited for
            return
        try:
            self.pacer.put(message)
        except PacerFull:
            self.output_lost = True
        self.release()

    def due_ns(self) -> int | None:
        """When there is something to do here, on the log's clock; None: nobody knows yet."""
        return self._head_due_ns() if self.pacer.queue else self._next_look_ns()

    def _head_due_ns(self) -> int | None:
        session = self.session
        return self.pacer.due_ns(self._undelivered_ms(), session.outbox.played_out_ns, session.now_ns())

    def _next_look_ns(self) -> int | None:
        """When a lane of which nothing comes is looked at; None: it owes no answer. Whatever the model's fault is, it must
        not become an answer without end."""
        state = self.session.state
        owed = state.active is not None and state.runtime_up and not self.pacer.queue and not self.pacer.paused
        return self.looked_ns + round(self.silent_s * NS_PER_S) // SILENT_LOOKS if owed else None

    def _moved(self, at_ns: int) -> None:
        self.looked_ns, self.silent_looks = at_ns, 0

    def _look(self) -> None:
        session, due_ns = self.session, self._next_look_ns()
        if due_ns is None or due_ns > session.now_ns():
            return
        self.looked_ns = session.now_ns()
        self.silent_looks += 1
        if self.silent_looks == SILENT_LOOKS:
            self.silent_looks = 0
            session.step(c.FailOutput("model_silent"))

    def release(self) -> None:
        """Let what is due become events, and tell the lane when it is too far ahead, or no more."""
        session = self.session
        while self.pacer.queue and not session.ended:
            due_ns = self._head_due_ns()
            if due_ns is None or due_ns > session.now_ns():
                break
            session.step(*command_from(self.pacer.take()))
        word = self.pacer.lane_word(self._undelivered_ms())
        if word is not None:
            self._moved(session.now_ns())
            session.tell_runtime(word(session.session_id, session.state.epoch))

    def _undelivered_ms(self) -> int:
        active = self.session.state.active
        if active is None:
            return 0
        sent = self.session.outbox.sent.get(active.response_id)
        return active.produced_ms - (sent.sent_ms if sent else active.sent_ms)

    def check_bounds(self) -> None:
        """Fail what has grown beyond them."""
        session, outbox = self.session, self.session.outbox
        if self.output_lost:
            self.output_lost = False
            session.step(c.FailOutput("mailbox_overflow"))
        self._look()
        if not outbox.overfull or outbox.fence > outbox.durable:
            return
        if session.step(c.FailOutput("output_backpressure")) or not outbox.overfull:
            return
        if session.attachment is not None:
            session.attachment.halt(1008, "slow_reader")
            session.move()
        else:
            outbox.give_up_waiting()
