"""Resume tokens: what the log keeps of them, and which one opens a session."""

from __future__ import annotations

import hmac
from hashlib import sha256

from core.ports.store import SessionUnknown, Store
from core.session import events as e
from core.session.state import Attachment, Phase, SessionState


class ResumeRefused(Exception):
    """``code``: session_resume_expired, invalid_resume_token, session_resume_conflict, unsupported_session_resume, or
    resync_required (the client must start afresh and retrieve the items)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def token_hash(token: str) -> str:
    """What the log keeps of a resume token."""
    return sha256(token.encode()).hexdigest()


def check_token(state: SessionState, token: str) -> None:
    """Raises ResumeRefused unless ``token`` opens this session."""
    if state.phase is Phase.CLOSED:
        raise has_ended()
    _check(state.attachment, token)


async def check_token_in_log(store: Store, session_id: str, token: str) -> None:
    """The same for a session of which only the log is known, at a small part of what a fold costs: whoever guesses tokens
    must not keep the server busy, take a place, or stand in the way of the client that has the right one. Raises
    ResumeRefused, StoreError."""
    link = Attachment()
    try:
        row = await store.session(session_id)
        if row.closed:
            raise has_ended()
        for record in await store.picked(session_id, (e.Attached, e.TokenConfirmed)):
            match record.event:
                case e.Attached():
                    link.attach(record.event)
                case e.TokenConfirmed():
                    link.confirm(record.event)
    except SessionUnknown:
        raise unknown() from None
    _check(link, token)


def has_ended() -> ResumeRefused:
    """For a session that is closed."""
    return ResumeRefused("session_resume_expired", "the session has ended")


def unknown() -> ResumeRefused:
    """For an id without a log."""
    return ResumeRefused("session_resume_expired", "there is no such session")


def _check(link: Attachment, token: str) -> None:
    """The previous token is good until the new attachment has shown that its answer arrived."""
    given = token_hash(token)
    good = bool(link.token_hash) and hmac.compare_digest(given, link.token_hash)
    if not link.confirmed and link.previous_token_hash:
        good |= hmac.compare_digest(given, link.previous_token_hash)
    if not good:
        raise ResumeRefused("invalid_resume_token", "the resume token is not this session's")
