"""One client's hold on a session's stream, and the task that writes to its socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import attrs
import trio

from core.actors.outbox import Entry
from core.ports.socket import Socket, SocketClosed

if TYPE_CHECKING:
    from core.actors.session import Session


STOP_GRACE_S = 1.0
"""A write that the peer does not take is given up so long after the attachment was told to stop."""

TOGETHER_MAX = 32
"""Frames in one write."""

Item = Mapping[str, Any] | Entry


@attrs.define(eq=False)
class Attachment:
    """``number`` is the last that a resumed client names, None for a fresh one. ``closed`` is set once the socket was
    closed from this side or found closed; the code and the reason say why."""

    socket: Socket
    number: int | None = None
    token_hash: str = ""
    resume_token: str = attrs.field(default="", repr=False)
    generation: int = 0
    closed: trio.Event = attrs.field(factory=trio.Event)
    close_code: int = 0
    close_reason: str = ""
    stop: tuple[int, str] | None = None
    """Set to (code, reason): stop writing and close."""
    close_after: int | None = None
    """Log position after which ``stop`` takes effect (what the client should still see lies before it)."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Around the sender's work."""

    def halt(self, code: int, reason: str) -> None:
        """Stop writing now, also when the peer takes nothing."""
        self.stop = (code, reason)
        self.close_after = None
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + STOP_GRACE_S)

    def end(self, code: int, reason: str) -> None:
        """Over, with nobody left who would close the socket."""
        if not self.closed.is_set():
            self.stop = self.stop or (code, reason)
            self.close_code, self.close_reason = self.stop
            self.closed.set()


async def run_sender(session: Session, attachment: Attachment, on_gone: Callable[[Attachment, str], None]) -> None:
    """Write the stream to the socket, until it is gone, replaced, or told to stop. Never raises for a lost peer."""
    try:
        with attachment.scope:
            await _write_stream(session, attachment)
    except SocketClosed:
        attachment.close_code, attachment.close_reason = 1006, "connection_lost"
        on_gone(attachment, "connection_lost")
    else:
        code, reason = attachment.stop or (1000, "closed")
        attachment.close_code, attachment.close_reason = code, reason
        await attachment.socket.close(code, reason)
        on_gone(attachment, reason)
    finally:
        attachment.closed.set()


async def _write_stream(session: Session, attachment: Attachment) -> None:
    outbox, socket = session.outbox, attachment.socket
    while not _over(session, attachment):
        item = outbox.peek(attachment.generation)
        if item is None:
            await session.stream_moved()
            continue
        if not session.lease.holds(trio.current_time()):
            await session.renew_lease()
            continue  # much may have happened meanwhile: look again
        body = item.body if isinstance(item, Entry) else None
        if _is_audible(item) and body is None:
            body = await session.load_body(item.frame.digest)
            if outbox.peek(attachment.generation) is not item or _over(session, attachment):
                continue  # a cut or a takeover came in while the audio was read: look again
            if not session.lease.holds(trio.current_time()):
                continue
        await socket.send(_hand_over(session, attachment, item, body))


def _hand_over(session: Session, attachment: Attachment, first: Item, body: bytes | None) -> list[bytes | str]:
    """What goes out in one write, without an await: ``first`` with its audio, and what may be written behind it, up to the
    next frame with audio. So a delta and its transcript share a write, and no audio waits here behind other audio, where a
    cut could not reach it."""
    outbox, socket = session.outbox, attachment.socket
    messages: list[bytes | str] = []
    spoke, item = False, first
    while True:
        messages.append(socket.encode(item.frame, body) if isinstance(item, Entry) else socket.encode_event(item))
        outbox.hand_over(item, session.now_ns())
        spoke = spoke or _is_audible(item)
        behind = outbox.peek(attachment.generation)
        if behind is None or len(messages) == TOGETHER_MAX:
            break
        body = behind.body if isinstance(behind, Entry) else None
        if _is_audible(behind) and (spoke or body is None):
            break
        item = behind
    session.delivered()
    return messages


def _is_audible(item: Item) -> TypeGuard[Entry]:
    """Whether audio goes with it."""
    return isinstance(item, Entry) and bool(item.frame.digest)


def _over(session: Session, attachment: Attachment) -> bool:
    if attachment.stop is None:
        return False
    if attachment.close_after is None:
        return True
    outbox = session.outbox
    if outbox.generation != attachment.generation:
        return True  # another has the stream
    return outbox.durable >= attachment.close_after and outbox.peek(attachment.generation) is None
