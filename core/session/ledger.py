"""The playback ledger: how much of an answer was made, handed over, heard, and counts as history.

Every millisecond that was produced is exactly one of pending, sent, invalidated. What was heard is cut at a word by the
text marks; where there are none, in proportion, and back to a word's end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from core.session.commands import Cursor, Sent
from core.session.state import Response, SessionState
from core.session.time_units import NS_PER_MS

PLAYED_OUT_MS = 60
"""An answer with less than this left to play is over: nobody can cut it any more."""


def sent_ms(response: Response, cursor: Cursor) -> int:
    """How much of the response was handed to the socket: the log's word or the live cursor's, whichever is more."""
    live = cursor.sent.get(response.response_id)
    known = response.sent_ms if live is None else max(response.sent_ms, live.sent_ms)
    return min(known, response.produced_ms - response.invalidated_ms)


def reached_ms(response: Response, sent: Mapping[str, Sent], now_ns: int) -> int:
    """How far a client has come that plays what it gets at once, and one answer after the other; 0 before the first audio.
    Never more than the time since that was handed over."""
    live = sent.get(response.response_id)
    if live is None:
        return 0
    queued_ms = max(0, -((now_ns - live.played_out_ns) // NS_PER_MS))
    return max(0, live.sent_ms - queued_ms)


def assumed_heard_ms(state: SessionState, response: Response, cursor: Cursor, now_ns: int) -> int:
    """What a client that never acks is taken to have heard (config.unacked)."""
    if state.config.unacked == "heard_nothing":
        return 0
    return min(sent_ms(response, cursor), reached_ms(response, cursor.sent, now_ns))


def played_now_ms(response: Response, cursor: Cursor, now_ns: int) -> int:
    """An estimate of what has been played by now, for deciding whether the assistant is speaking (not for history)."""
    handed = sent_ms(response, cursor)
    if response.acked:
        since_ack = max(0, (now_ns - response.last_ack_ns) // NS_PER_MS)
        return min(handed, response.played_ms + since_ack)
    return min(handed, reached_ms(response, cursor.sent, now_ns))


def outstanding(response: Response, cursor: Cursor, now_ns: int) -> bool:
    """Whether a cut would still change something for this response: it is being made, or not played out."""
    if response.cut or response.out_of_band:
        return False
    if response.active:
        return True
    audible_ms = response.produced_ms - response.invalidated_ms
    if audible_ms - response.played_ms <= PLAYED_OUT_MS:
        return False  # heard already, whatever a new attachment's clock says
    return audible_ms - played_now_ms(response, cursor, now_ns) > PLAYED_OUT_MS


def unsettled(state: SessionState) -> list[Response]:
    """The answers of which anything may still change: being made, not heard to their end, or with calls. Of the others
    nothing is outstanding, and nothing more is assumed."""
    return [
        response
        for response in state.responses.values()
        if (response.produced_ms - response.invalidated_ms > response.committed_ms and not response.cut)
        or response.calls
        or response.status == "in_progress"
    ]


def undelivered_calls(response: Response, cursor: Cursor) -> tuple[str, ...]:
    """Items of function calls that were not handed over whole: a cut now means that they were never made."""
    if response.cut or not cursor.waiting:
        return ()
    return tuple(item_id for item_id, position in response.calls.items() if position >= cursor.waiting)


def speaking(state: SessionState, cursor: Cursor, now_ns: int) -> Response | None:
    """The newest response that a cut would hit, if any."""
    for response in reversed(state.responses.values()):
        if outstanding(response, cursor, now_ns):
            return response
        if not response.cut and not response.out_of_band:
            return None
    return None


def heard_chars(response: Response, heard_ms: int | None = None) -> int:
    """How many characters of the response's text were heard; ``heard_ms`` None: as the ledger says."""
    if "audio" not in response.modalities:
        return len(response.text)  # an answer in text is read as it comes
    heard_ms = response.committed_ms if heard_ms is None else heard_ms
    if heard_ms <= 0:
        return 0
    if response.status == "completed" and heard_ms >= response.produced_ms:
        return len(response.text)  # all of it, also what the last mark leaves out
    if not response.marks:
        return _proportional_chars(response, heard_ms)
    place = bisect_right(response.marks, heard_ms, key=_end_ms)
    return response.marks[place - 1][0] if place else 0


def _end_ms(mark: tuple[int, int]) -> int:
    return mark[1]


def heard_text(response: Response, heard_ms: int | None = None) -> str:
    """The prefix of the response's text that was heard; ``heard_ms`` None: as the ledger says."""
    return response.text[: heard_chars(response, heard_ms)]


def _proportional_chars(response: Response, heard_ms: int) -> int:
    if heard_ms >= response.produced_ms:
        return len(response.text)
    chars = len(response.text) * heard_ms // response.produced_ms
    if response.text[chars : chars + 1].isspace():
        return chars
    return response.text.rfind(" ", 0, chars) + 1
