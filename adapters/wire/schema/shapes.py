"""Shapes of the events that the stream's promises rest on, and parsers that both sides share.

Only what a client must read to rebuild the stream is written down here; the full list of fields of each dialect is in
the dialect's own module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NotRequired, TypedDict

Ranges = tuple[tuple[int, int], ...]
"""Closed ranges of numbers, ``((from, to), ...)``, ascending and disjoint."""


class SessionCreated(TypedDict):
    """Opens a fresh attachment; unnumbered. ``resume_token`` is absent where a session cannot be resumed."""

    type: str
    event_id: str
    session: dict[str, Any]
    attachment_generation: NotRequired[int]
    resume_token: NotRequired[str]


class SessionResume(TypedDict):
    """The first frame of a client that comes back, or of one that takes over."""

    type: str
    event_id: str
    session_id: str
    resume_token: str
    last_received_server_event_seq: int


class SessionResumed(TypedDict):
    """Opens a resumed attachment; unnumbered. ``skipped`` are numbers above the client's own that will never come
    (audio of an answer that was cut). ``input_ms`` and ``last_event_id`` say how far the client's input is durable."""

    type: str
    event_id: str
    session_id: str
    session: dict[str, Any]
    attachment_generation: int
    resume_token: str
    skipped: list[list[int]]
    input_ms: int
    last_event_id: str | None


class PlaybackAck(TypedDict):
    """Cumulative playback of one response. ``truncate`` asks that history ends at ``committed_ms`` for good."""

    type: str
    event_id: str
    response_id: str
    played_ms: int
    committed_ms: NotRequired[int]
    truncate: NotRequired[bool]


class ErrorBody(TypedDict):
    """The nested error object."""

    type: str
    code: str
    message: str
    param: NotRequired[str | None]
    event_id: NotRequired[str | None]
    retryable: NotRequired[bool]


def parse_ranges(value: object) -> Ranges:
    """``[[from, to], ...]`` -> ranges, sorted and merged; [] when ``value`` is None. Raises ValueError on any other
    shape."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError("ranges must be a list of [from, to] pairs")
    pairs: list[tuple[int, int]] = []
    for entry in value:
        if not isinstance(entry, list) or len(entry) != 2 or not all(type(number) is int for number in entry):
            raise ValueError("ranges must be a list of [from, to] pairs")
        first, last = entry
        if first > last:
            raise ValueError(f"range [{first}, {last}] ends before it begins")
        pairs.append((first, last))
    return merge_ranges(pairs)


def merge_ranges(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, with neighbours and overlaps joined."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def subtract_ranges(pairs: Iterable[tuple[int, int]], holes: Ranges) -> Ranges:
    """What of ``pairs`` is in none of ``holes``."""
    left: list[tuple[int, int]] = []
    for first, last in merge_ranges(pairs):
        start = first
        for hole_first, hole_last in holes:
            if hole_last < start or hole_first > last:
                continue
            if hole_first > start:
                left.append((start, hole_first - 1))
            start = hole_last + 1
        if start <= last:
            left.append((start, last))
    return tuple(left)


def skipped_of_done(payload: Mapping[str, Any]) -> Ranges:
    """The numbers that a ``response.done`` declares dead: ``response.metadata.skipped``. Raises ValueError."""
    for holder in (payload.get("response"), payload):
        metadata = holder.get("metadata") if isinstance(holder, Mapping) else None
        if isinstance(metadata, Mapping) and "skipped" in metadata:
            return parse_ranges(metadata["skipped"])
    return ()


def skipped_of_resumed(payload: Mapping[str, Any]) -> Ranges:
    """The numbers that a ``session.resumed`` declares dead. Raises ValueError."""
    return parse_ranges(payload.get("skipped"))
