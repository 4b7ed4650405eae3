"""Events without their words. Every letter becomes a dot, so lengths stay, and with them everything that a fold counts:
how much was heard, where a text was cut. Blanks stay too. Ids and digests stay: the log is held together by them."""

from __future__ import annotations

import json
from typing import Any

import attrs

from core.session import events as e
from core.session.config import SessionConfig

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
            return attrs.evolve(event, instructions=instructions, metadata=_json(event.metadata))
        case e.ToolCalled():
            return attrs.evolve(event, arguments=_json(event.arguments))
        case e.ItemCreated():
            return attrs.evolve(event, text=dots(event.text), item=_json(event.item))
        case e.Refused():
            return attrs.evolve(event, message=dots(event.message))  # it may quote what it refuses
        case _:
            return event


def _config(config: SessionConfig) -> SessionConfig:
    return attrs.evolve(config, instructions=dots(config.instructions), echo=_json(config.echo))


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
