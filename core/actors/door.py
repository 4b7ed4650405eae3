"""Who holds a session's stream: attachments come, are replaced, leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from core.actors.attachment import Attachment, run_sender
from core.ports.projection import Credentials, Resumption
from core.session import commands as c

if TYPE_CHECKING:
    from core.actors.session import Session

RESUME_ELSEWHERE = 1012
"""WebSocket close code (service restart) that makes a client resume."""

SETTLE_S = 5.0
"""How long the last sender of a session that is over may take."""


@attrs.define
class Door:
    """One session's. ``holder``: who has the stream now."""

    session: Session
    holder: Attachment | None = None

    def let_in(self, attachment: Attachment, nursery: trio.Nursery) -> None:
        """Give the stream to ``attachment``, and start its sender."""
        session, outbox = self.session, self.session.outbox
        number, head = attachment.number, outbox.head
        if number is not None and not outbox.knows(number):
            attachment.end(RESUME_ELSEWHERE, "resume")  # it was let go meanwhile: the next attempt is told so
            return
        self._replace(self.holder)
        sent: tuple[tuple[str, int], ...] = ()
        if number is not None:
            outbox.rewind(number)  # before the step: it lets go of what was handed over long ago
            sent = outbox.resent(number, session.now_ns())
        records = session.step(c.Attach(attachment.token_hash, number, sent))
        if not records or session.ended:
            attachment.end(RESUME_ELSEWHERE, "resume")
            return
        attachment.generation = session.state.attachment.generation
        credentials = Credentials(session.session_id, attachment.generation, attachment.resume_token)
        if number is None:
            opening = session.projection.greeting(session.state, credentials)
        else:
            link = Resumption(outbox.skipped(number), session.state.input.now_ms, session.state.last_event_id)
            opening = [session.projection.resumed(session.state, credentials, link)]
        # A fresh client begins where the stream was, and so gets what its attachment itself adds.
        outbox.attach(attachment.generation, head if number is None else number, opening, records[-1].position)
        self.holder = attachment
        nursery.start_soon(run_sender, session, attachment, session.sender_gone)
        session.move()

    def _replace(self, old: Attachment | None) -> None:
        if old is not None:
            self.holder = None
            old.halt(1000, "session_replaced")
            self.session.move()

    def leave(self, attachment: Attachment, reason: str) -> None:
        """Its peer is gone."""
        if attachment is self.holder:
            self.holder = None
            self.session.step(c.Detach(attachment.generation, reason))

    def close_after(self, position: int, code: int, reason: str) -> None:
        """Close the socket when what lies before ``position`` was sent."""
        if self.holder is not None:
            self.holder.close_after = position
            self.holder.stop = (code, reason)

    def send_away(self, code: int, reason: str) -> None:
        """The actor ends, the session goes on elsewhere: close the socket now."""
        attachment = self.holder
        if attachment is not None:
            self.leave(attachment, reason)
            attachment.halt(code, reason)
            self.holder = attachment

    async def settle(self) -> None:
        """Let the last sender finish: a closing session still says so to its client."""
        attachment = self.holder
        if attachment is None:
            return
        attachment.stop = attachment.stop or (1000, "closed")
        self.session.move()
        with trio.move_on_after(SETTLE_S):
            await attachment.closed.wait()
