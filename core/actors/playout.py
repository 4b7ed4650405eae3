"""Model output between the runtime and the log: held while it is early, released when it is due, and bounded.

What is bounded, and what becomes of the excess: output that waits in the mailbox or here (that answer fails, as
``mailbox_overflow``), and frames that wait for the socket (the answer fails, as ``output_backpressure``; a client that
still takes nothing is dropped; where there is no client, the oldest frames leave, and who comes back is told so).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from core.actors.pacer import Held, Pacer, PacerFull
from core.actors.translate import command_from
from core.session import commands as c
from core.session.config import SessionConfig

if TYPE_CHECKING:
    from core.actors.session import Session


@attrs.define
class Playout:
    """One session's. Nothing here waits."""

    session: Session
    pacer: Pacer
    output_lost: bool = False
    """Output did not fit somewhere; the answer that it was part of fails at the next turn."""

    def configure(self, config: SessionConfig) -> None:
        """The leads have changed, perhaps."""
        self.pacer.lead_ms = config.max_client_lead_ms
        self.pacer.lane_lead_ms = config.max_lane_lead_ms

    def put(self, message: Held) -> None:
        """The runtime's next word about an answer. What is of no answer that is being made goes to the machine at once,
        which drops it."""
        session = self.session
        active = session.state.active
        if active is None or message.epoch != session.state.epoch or message.response_id != active.response_id:
            session.step(*command_from(message))
            return
        try:
            self.pacer.put(message)
        except PacerFull:
            self.output_lost = True
        self.release()

    def due_ns(self) -> int | None:
        """When the next of what is held is due, on the log's clock; None: nothing is, or nothing tells yet."""
        active = self.session.state.active
        sent = self.session.outbox.sent.get(active.response_id) if active else None
        return self.pacer.due_ns(sent)

    def release(self) -> None:
        """Let what is due become events, and tell the lane when it is too far ahead, or no more."""
        session = self.session
        while not session.ended and (due := self.due_ns()) is not None and due <= session.now_ns():
            session.step(*command_from(self.pacer.take()))
        word = self.pacer.lane_word(self._undelivered_ms())
        if word is not None:
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
        if not outbox.overfull or outbox.fence > outbox.durable:
            return
        if session.step(c.FailOutput("output_backpressure")) or not outbox.overfull:
            return
        if session.attachment is not None:
            session.attachment.halt(1008, "slow_reader")
            session.move()
        else:
            outbox.give_up_waiting()
