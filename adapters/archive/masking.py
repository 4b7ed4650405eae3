"""Events without their words. Every letter becomes a dot, so lengths stay, and with them everything that a fold counts:
how much was heard, where a text was cut. Blanks stay too. Ids and digests stay: the log is held together by them."""

from __future__ import annotations

import json
from typing import Any, assert_never

import attrs

from core.session import events as e
from core.session.config import SessionConfig, Tool
from core.session.decisions.cut import LANE_FULL

DOT = "•"

KEPT = frozenset(
    {
        "type",
        "role",
        "status",
        "object",
        "id",
        "call_id",
        "name",
        "format",
        "detail",
        "tool_choice",
        "tracing",
        "truncation",
    }
)
"""Keys of JSON objects whose values say what a thing is, and nothing that a person said."""

KEPT_FIELDS = frozenset(
    {
        *("session_id", "server", "token_hash", "event_id", "item_id", "previous_item_id", "response_id", "call_id"),
        *("digest", "answers", "upto", "parts", "sent", "items"),  # ids too
        *("dialect", "kind", "encoding", "role", "name", "by", "trigger", "action", "status", "disposition", "source"),
        *("code", "param", "command", "modalities", "output_modalities", "timings"),
        *("media_type", "inputs", "calls", "tool_choice"),
        "reason",  # the server's own words; but SessionClosed's may be a client's
        *("model", "voice", "type", "overlap_policy", "unacked", "context_on_barge_in", "window_mode"),
    }
)
"""Fields of events, and of the configurations in them, whose text holds the log together or is one of a few words. All other
text is masked."""

CLOSE_REASONS = frozenset(
    {
        "client_close",
        "stopped",
        "erased",
        LANE_FULL,
        "internal_error",
        "idle_ttl_expired",
        "disconnect_grace_expired",
        "pause_expired",
        "session_expired",
    }
)
"""Ends of sessions in the server's own words; what stands behind a colon is masked. Any other reason is a client's text."""


def dots(text: str) -> str:
    """As long as ``text``."""
    return "".join(letter if letter.isspace() else DOT for letter in text)


def masked(event: e.Event) -> e.Event:
    """The event without texts of people, of the model or of the operator."""
    match event:
        case e.SessionOpened() | e.ConfigChanged():
            return attrs.evolve(event, config=_config(event.config))
        case e.SpeechStopped():
            return event if event.text is None else attrs.evolve(event, text=dots(event.text))
        case e.InputTranscript() | e.Output():
            return attrs.evolve(event, text=dots(event.text))
        case e.ResponseStarted():
            instructions = None if event.instructions is None else dots(event.instructions)
            tools = None if event.tools is None else _tools(event.tools)
            return attrs.evolve(event, instructions=instructions, metadata=_json(event.metadata), tools=tools)
        case e.ToolCalled():
            return attrs.evolve(event, arguments=_json(event.arguments))
        case e.Append():
            return attrs.evolve(event, text=dots(event.text))
        case e.ItemCreated():
            return attrs.evolve(event, text=dots(event.text), item=_json(event.item))
        case e.Refused():
            return attrs.evolve(event, message=dots(event.message))  # it may quote what it refuses
        case e.SessionClosed():
            return attrs.evolve(event, reason=_close_reason(event.reason))
        case (
            e.OwnerChanged()
            | e.Attached()
            | e.TokenConfirmed()
            | e.Detached()
            | e.InputCleared()
            | e.SpeechStarted()
            | e.OverlapDecided()
            | e.Commit()
            | e.LaneOpened()
            | e.LaneTruncated()
            | e.WindowSlid()
            | e.ResponseEnded()
            | e.EpochBump()
            | e.OutputInvalidated()
            | e.PlaybackAck()
            | e.ItemDeleted()
            | e.ItemRetrieved()
            | e.Touched()
            | e.Paused()
            | e.Unpaused()
            | e.DeadlineFired()
            | e.RuntimeChanged()
            | e.Erased()
        ):
            return event
        case _:
            assert_never(event)


def _close_reason(reason: str) -> str:
    known, colon, rest = reason.partition(":")
    return known + colon + dots(rest) if known in CLOSE_REASONS else dots(reason)


def _config(config: SessionConfig) -> SessionConfig:
    return attrs.evolve(
        config, instructions=dots(config.instructions), echo=_json(config.echo), tools=_tools(config.tools)
    )


def _tools(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    return tuple(
        attrs.evolve(tool, description=dots(tool.description), parameters=_json(tool.parameters)) for tool in tools
    )


def _json(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return dots(text)
    return json.dumps(_value(value), ensure_ascii=False)


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return dots(value)
    if isinstance(value, list):
        return [_value(one) for one in value]
    if isinstance(value, dict):
        return {key: one if key in KEPT and isinstance(one, str) else _value(one) for key, one in value.items()}
    return value
