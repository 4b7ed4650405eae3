"""What no command may say, whoever sends it: arguments that no log could hold, and such as would make time run back.

The wire adapters check what clients send, each dialect in its own words; the runtime's messages come from a process of ours.
This is the last line behind them, so that the machine is total: an absurd command is refused (``invalid_value``), or is
as if it had not been sent, or fails the answer that it is about. It never raises, and never becomes an event.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from core.session import commands as c
from core.session.config import REFERENCE_AUDIO, TEXT
from core.session.decisions.items import TOKENS_MAX
from core.session.overlap import CLIENT_REASONS, OVERLAP_ACTIONS
from core.session.state import SessionState

INT_MAX = 2**63 - 1
"""What JSON readers and databases hold."""

ID_CHARS_MAX = 512
TEXT_CHARS_MAX = 16 * 1024 * 1024
"""More than a frame of any dialect."""

BODY_BYTES_MAX = 1 << 30
METADATA_CHARS_MAX = 64 * 1024
RATE_MAX = 1_000_000

AHEAD_MS_MAX = 3_600_000
"""An ear may be so far ahead of the audio that it was sent: it fills in silence for a client that has stopped sending."""

ROLES = frozenset({"user", "assistant", "system", "function_call", "function_call_output"})
MODALITIES = (("audio",), ("text",), ("text", "audio"))


def absurd(state: SessionState, command: c.Command) -> str | None:
    """The name of the first field of ``command`` whose value cannot be, or None."""
    kind = type(command)
    for name, chars_max in _FIELDS[kind]:
        value = getattr(command, name)
        sort = type(value)  # no call for what almost all are: every command is looked through
        if sort is str and len(value) <= chars_max and value.isascii():
            continue
        if value is None or (sort is int and -INT_MAX <= value <= INT_MAX):
            continue
        if not _plain(value, chars_max):
            return name
    check = _CHECKS.get(kind)
    return None if check is None else check(state, command)


def echoed_id(command: c.Command) -> str | None:
    """The client's own id of the command, unless that is absurd itself: such a one is neither remembered nor echoed."""
    event_id: str | None = getattr(command, "event_id", None)
    return event_id if event_id is not None and _plain(event_id, ID_CHARS_MAX) else None


class _Fields(dict[type, tuple[tuple[str, int], ...]]):
    """Of each class the names of its fields and how many characters each may have; found out once, for every command is
    looked through."""

    def __missing__(self, kind: Any) -> tuple[tuple[str, int], ...]:
        names = [str(field.name) for field in getattr(kind, "__attrs_attrs__", ())]
        made = self[kind] = tuple((name, ID_CHARS_MAX if name.endswith("_id") else TEXT_CHARS_MAX) for name in names)
        return made


_FIELDS = _Fields()


def _plain(value: Any, chars_max: int) -> bool:
    """Whether a log can hold it."""
    kind = type(value)
    if kind is str:
        return len(value) <= chars_max and (value.isascii() or _is_text(value))
    if kind is int or kind is bool:
        return bool(-INT_MAX <= value <= INT_MAX)
    if kind is float:
        return math.isfinite(value)
    if kind is tuple:
        return all(_plain(one, chars_max) for one in value)
    return all(_plain(getattr(value, name), chars_max) for name, _ in _FIELDS[kind])


def _is_text(value: str) -> bool:
    """Whether it has no half of a character (a lone surrogate)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_body(size_bytes: int) -> bool:
    return 0 <= size_bytes <= BODY_BYTES_MAX


def _append_audio(state: SessionState, command: c.AppendAudio) -> str | None:
    if not _is_body(command.size_bytes):
        return "size_bytes"
    if not 0 <= command.samples <= command.size_bytes:
        return "samples"
    return None if all(_is_body(image.size_bytes) for image in command.images) else "images"


def _append_part(state: SessionState, command: c.AppendPart) -> str | None:
    if command.kind not in (TEXT, REFERENCE_AUDIO):
        return "kind"
    return None if _is_body(command.size_bytes) else "size_bytes"


def _create_response(state: SessionState, command: c.CreateResponse) -> str | None:
    if len(command.metadata) > METADATA_CHARS_MAX:
        return "metadata"
    if command.modalities is not None and command.modalities not in MODALITIES:
        return "modalities"
    tokens = command.max_output_tokens
    return None if tokens is None or 0 < tokens <= TOKENS_MAX else "max_output_tokens"


def _judge_overlap(state: SessionState, command: c.JudgeOverlap) -> str | None:
    if command.action not in OVERLAP_ACTIONS:
        return "action"
    return None if command.reason in CLIENT_REASONS else "reason"


def _create_item(state: SessionState, command: c.CreateItem) -> str | None:
    if command.role not in ROLES:
        return "role"
    return None if all(_is_body(image.size_bytes) for image in command.images) else "images"


def _speech_heard(state: SessionState, command: c.SpeechHeard) -> str | None:
    return None if _is_heard(state, command.start_ms) else "start_ms"


def _speech_finished(state: SessionState, command: c.SpeechFinished) -> str | None:
    if not _is_heard(state, command.end_ms):
        return "end_ms"
    return None if command.start_ms <= command.end_ms else "start_ms"


def _is_heard(state: SessionState, at_ms: int) -> bool:
    return at_ms <= state.input.now_ms + AHEAD_MS_MAX


def _model_output(state: SessionState, command: c.ModelOutput) -> str | None:
    if command.kind not in ("speak", "listen"):
        return "kind"
    if not _is_body(command.size_bytes):
        return "size_bytes"
    if not 0 <= command.samples <= BODY_BYTES_MAX:
        return "samples"
    return None if command.rate <= RATE_MAX else "rate"  # one of 0 or less makes no time pass


def _model_done(state: SessionState, command: c.ModelDone) -> str | None:
    if command.status not in ("completed", "incomplete", "failed"):
        return "status"
    usage = command.usage
    return None if usage is None or all(0 <= tokens <= TOKENS_MAX for tokens in usage) else "usage"


def _gain_runtime(state: SessionState, command: c.GainRuntime) -> str | None:
    return None if command.lane_tokens_max >= 0 else "lane_tokens_max"


def _attach(state: SessionState, command: c.Attach) -> str | None:
    if command.resumed_from is not None and command.resumed_from < 0:
        return "resumed_from"
    return None if all(sent_ms >= 0 for _, sent_ms in command.sent) else "sent"


_CHECKS: dict[type, Callable[[SessionState, Any], str | None]] = {
    c.AppendAudio: _append_audio,
    c.AppendPart: _append_part,
    c.CreateResponse: _create_response,
    c.JudgeOverlap: _judge_overlap,
    c.CreateItem: _create_item,
    c.SpeechHeard: _speech_heard,
    c.SpeechFinished: _speech_finished,
    c.ModelOutput: _model_output,
    c.ModelDone: _model_done,
    c.GainRuntime: _gain_runtime,
    c.Attach: _attach,
}
"""What the types of a command's fields do not say."""
